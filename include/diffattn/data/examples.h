// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/data/corpus.h"
#include "diffattn/data/packed_rows.h"

// Data that comes as examples: texts with a class, documents with a summary.

namespace diffattn::data {

struct Example {
  std::vector<TokenId> source;  // text, document
  std::vector<TokenId> target;  // summary; empty for a text with a class
  std::int64_t label = 0;       // index into label_names; 0 without classes
};

struct ExampleSet {
  std::vector<Example> examples;
  std::vector<std::string> label_names;  // sorted, numbers as numbers
  std::uint64_t truncated = 0;           // texts that were longer than allowed

  /// As Corpus::split(), example by example.
  std::pair<ExampleSet, ExampleSet> split(double fraction, std::uint64_t seed) const;
};

struct ExampleOptions {
  bool skip_bad = false;
  std::size_t max_source_tokens = 1024;  // longer ones lose their end
  std::size_t max_target_tokens = 256;
  /// Classes that are allowed; a label that is not among them is a bad line. Empty: those of the
  /// file.
  std::vector<std::string> label_names;
};

/// Reads {"text", "label"} (kLabelled) or {"document", "summary"} (kSummary) lines. Texts get the
/// special tokens of the tokenizer; a summary ends with its end of text. Throws io::Error.
ExampleSet read_examples(const std::string& path, io::RecordKind kind,
                         const io::Tokenizer& tokenizer, const ExampleOptions& options = {},
                         ReadReport* report = nullptr);

/// Batches of numbers 0 ... size - 1, shuffled anew for each epoch; the last batch of an epoch goes
/// on into the next one. Ranks take turns.
class ShuffledIndices {
 public:
  /// Throws io::Error when size or batch_size is 0.
  ShuffledIndices(std::uint64_t size, const RowOptions& options);

  /// batch_size numbers; fewer, at last none, at the end of a pass that is not endless.
  std::vector<std::uint64_t> next();
  std::uint64_t epoch() const noexcept { return taken_ / size_; }
  std::string position() const;
  void seek(const std::string& position);

 private:
  std::uint64_t size_;
  RowOptions options_;
  std::uint64_t taken_ = 0;  // by all ranks
};

/// Texts of several lengths in one table, padded on the right.
struct PaddedBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;            // of the longest
  std::vector<std::int64_t> ids;      // [rows, length]
  std::vector<std::int64_t> lengths;  // [rows]
};

PaddedBatch pad_sources(const ExampleSet& set, std::span<const std::uint64_t> indices, TokenId pad);
/// Targets as a decoder reads them: begin, then the target without its last token.
PaddedBatch pad_targets(const ExampleSet& set, std::span<const std::uint64_t> indices,
                        TokenId begin, TokenId pad);
/// What the decoder should say, beside pad_targets(): [rows, length], kIgnoredLabel where padded.
std::vector<std::int64_t> target_labels(const ExampleSet& set,
                                        std::span<const std::uint64_t> indices);
/// The classes: [rows].
std::vector<std::int64_t> class_labels(const ExampleSet& set,
                                       std::span<const std::uint64_t> indices);

}  // namespace diffattn::data
