// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"

namespace diffattn::io {

/// How text is cut into words, inside which pairs are merged.
enum class WordPattern { kGpt2, kLlama3, kQwen2 };

struct TrainingOptions {
  std::size_t vocab_size = 16384;   // special tokens and the 256 bytes included
  std::uint64_t min_frequency = 2;  // of a pair that is merged
  WordPattern pattern = WordPattern::kLlama3;
  bool nfc = false;
  std::vector<std::string> special_tokens = {kEndOfText};  // get the first ids
  unsigned threads = 0;                                    // 0: one per core
};

/// One call per step of work, from the calling thread.
struct TrainingProgress {
  enum class Phase { kCount, kMerge } phase = Phase::kCount;
  std::uint64_t done = 0;  // bytes read; tokens in the vocabulary
  std::uint64_t total = 0;
};
using ProgressCallback = std::function<void(const TrainingProgress&)>;

/// Learns a byte-level BPE tokenizer. The result depends on the text alone, not on threads; it is
/// that of the `tokenizers` library's BpeTrainer fed with the same texts.
///
/// Words of a text never cross from one add_text() to the next. Special tokens written out in the
/// text are text like any other.
class TokenizerTrainer {
 public:
  explicit TokenizerTrainer(TrainingOptions options);
  ~TokenizerTrainer();
  TokenizerTrainer(TokenizerTrainer&&) noexcept;
  TokenizerTrainer& operator=(TokenizerTrainer&&) noexcept;

  void add_text(std::string_view text);
  /// Reads a file of any size in pieces that end at a line's end. Throws Error.
  void add_file(const std::string& path, const ProgressCallback& progress = {});
  /// Throws Error when vocab_size has no room for bytes and special tokens.
  Tokenizer train(const ProgressCallback& progress = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffattn::io
