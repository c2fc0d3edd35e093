// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/data/corpus.h"
#include "diffattn/data/packed_rows.h"

namespace diffattn::data {

/// A text with a class, or a document with a summary.
struct Example {
  std::vector<TokenId> source;  // text or document
  std::vector<TokenId> target;  // summary; empty for a text with a class
  int64_t label = 0;            // index into label_names; 0 without classes
};

struct ExampleSet {
  std::vector<Example> examples;
  std::vector<std::string> label_names;  // sorted, numbers by value
  uint64_t truncated = 0;                // texts that were longer than allowed

  /// Splits the set into two parts with about 1 - fraction and fraction of the examples. The seed
  /// chooses the part of each example. Throws io::Error unless fraction is in [0, 1).
  std::pair<ExampleSet, ExampleSet> split(double fraction, uint64_t seed) const;
};

struct ExampleOptions {
  bool skip_bad = false;
  size_t max_source_tokens = 1024;  // longer texts lose their end
  size_t max_target_tokens = 256;
  /// Allowed classes; a line with another label is bad. Empty: all classes of the file.
  std::vector<std::string> label_names;
};

/// Reads lines {"text", "label"} (kLabelled) or {"document", "summary"} (kSummary). Sources get the
/// special tokens of the tokenizer; a summary ends with the end-of-text token. Throws io::Error.
ExampleSet read_examples(const std::string& path, io::RecordKind kind,
                         const io::Tokenizer& tokenizer, const ExampleOptions& options = {},
                         ReadReport* report = nullptr);

/// Batches of the numbers 0 ... size - 1, in another order in each epoch. The last batch of an
/// epoch continues with the next epoch. Each rank gets every world_size-th number.
class ShuffledIndices {
 public:
  /// Throws io::Error if size, batch_size or world_size is 0, or rank is out of range.
  ShuffledIndices(uint64_t size, const RowOptions& options);

  /// Returns batch_size numbers; fewer, and then none, at the end of a pass that is not endless.
  std::vector<uint64_t> next();
  uint64_t epoch() const noexcept { return taken_ / size_; }
  std::string position() const;
  void seek(const std::string& position);

 private:
  uint64_t size_;
  RowOptions options_;
  uint64_t taken_ = 0;  // numbers taken so far by all ranks
};

/// Token ids of several texts, padded on the right to one length.
struct PaddedBatch {
  int64_t rows = 0;
  int64_t length = 0;            // of the longest text
  std::vector<int64_t> ids;      // [rows, length]
  std::vector<int64_t> lengths;  // [rows]
};

/// Pads the sources of the examples at `indices`.
PaddedBatch pad_sources(const ExampleSet& set, std::span<const uint64_t> indices, TokenId pad);
/// Pads the input of a decoder: `begin`, then the target without its last token.
PaddedBatch pad_targets(const ExampleSet& set, std::span<const uint64_t> indices, TokenId begin,
                        TokenId pad);
/// Returns the labels for pad_targets(): [rows, length], kIgnoredLabel for padding.
std::vector<int64_t> target_labels(const ExampleSet& set, std::span<const uint64_t> indices);
/// Returns the classes, [rows].
std::vector<int64_t> class_labels(const ExampleSet& set, std::span<const uint64_t> indices);

}  // namespace diffattn::data
