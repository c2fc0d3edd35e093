// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"

namespace diffattn::io {

/// The pattern that splits text into words. Merges never cross a word's end.
enum class WordPattern { kGpt2, kLlama3, kQwen2 };

struct TrainingOptions {
  size_t vocab_size = 16384;   // includes the special tokens and the 256 bytes
  uint64_t min_frequency = 2;  // rarer pairs are not merged
  WordPattern pattern = WordPattern::kLlama3;
  bool nfc = false;
  std::vector<std::string> special_tokens = {kEndOfText};  // they get the first ids
  unsigned threads = 0;                                    // 0: one per core
};

/// The progress of a training. The trainer calls a ProgressCallback with it, on the thread that
/// called add_file() or train().
struct TrainingProgress {
  enum class Phase { kCount, kMerge } phase = Phase::kCount;
  uint64_t done = 0;  // kCount: bytes read; kMerge: tokens in the vocabulary
  uint64_t total = 0;
};
using ProgressCallback = std::function<void(const TrainingProgress&)>;

/// Trains a byte-level BPE tokenizer. The result depends only on the text and the options, not on
/// the number of threads. It equals that of BpeTrainer in the `tokenizers` library, except that no
/// merge makes a token of more than kMaxTokenBytes bytes, which no file may hold.
///
/// Words do not continue from one add_text() to the next. Special tokens that are written out in
/// the text count as ordinary text.
class TokenizerTrainer {
 public:
  explicit TokenizerTrainer(TrainingOptions options);
  ~TokenizerTrainer();
  TokenizerTrainer(TokenizerTrainer&&) noexcept;
  TokenizerTrainer& operator=(TokenizerTrainer&&) noexcept;

  void add_text(std::string_view text);
  /// Reads a file of any size in chunks that end between words. Throws Error.
  void add_file(const std::string& path, const ProgressCallback& progress = {});
  /// Throws Error if vocab_size is too small for the 256 bytes and the special tokens.
  Tokenizer train(const ProgressCallback& progress = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffattn::io
