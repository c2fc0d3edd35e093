// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/examples.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "data/position.h"
#include "data/split.h"
#include "diffattn/io/error.h"

namespace diffattn::data {
namespace {

constexpr char kKind[] = "shuffled examples";

std::optional<int64_t> number_of(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Orders labels: numbers by value, then text by its bytes.
bool label_less(const std::string& a, const std::string& b) {
  const auto x = number_of(a), y = number_of(b);
  if (x && y) return *x != *y ? *x < *y : a < b;
  if (x.has_value() != y.has_value()) return x.has_value();
  return a < b;
}

struct LabelOrder {
  bool operator()(const std::string& a, const std::string& b) const { return label_less(a, b); }
};
using LabelIndex = std::map<std::string, int64_t, LabelOrder>;

/// Cuts ids to `most` tokens and ends them with `suffix` again. Returns true if it cut something.
bool truncate(std::vector<TokenId>& ids, size_t most, std::span<const TokenId> suffix) {
  if (ids.size() <= most) return false;
  ids.resize(most);
  if (suffix.size() <= most) {
    std::copy(suffix.begin(), suffix.end(), ids.end() - std::ssize(suffix));
  }
  return true;
}

class ExampleReader {
 public:
  ExampleReader(io::RecordKind kind, const io::Tokenizer& tokenizer, const ExampleOptions& options)
      : kind_(kind), tokenizer_(tokenizer), options_(options) {
    for (const std::string& name : options.label_names) {
      labels_.emplace(name, static_cast<int64_t>(labels_.size()));
    }
    const auto end = tokenizer.end_of_text();
    if (end) target_end_.push_back(*end);
  }

  ExampleSet run(const std::string& path, ReadReport& report) {
    io::JsonlReader reader(path, kind_, options_.skip_bad);
    for (io::Record record; reader.next(record);) add(record, path, reader.line(), report);
    report.files = 1;
    report.bytes = report.total_bytes = reader.lines().size();
    report.documents = set_.examples.size();
    report.skipped += reader.skipped();
    if (report.first_fault.empty()) report.first_fault = reader.first_fault();
    if (set_.examples.empty()) {
      throw io::Error(path,
                      "expected examples, got none; bad lines: " + std::to_string(report.skipped));
    }
    if (texts_ == 0) throw io::Error(path, "expected texts, got only empty ones");
    finish_labels();
    return std::move(set_);
  }

 private:
  void add(const io::Record& record, const std::string& path, uint64_t line, ReadReport& report) {
    Example example;
    example.source = tokenizer_.encode(record.text);
    if (const std::string what = fault_of(record, example.source); !what.empty()) {
      const io::Error error(path, "line " + std::to_string(line) + ": " + what);
      if (!options_.skip_bad) throw error;
      if (report.skipped++ == 0) report.first_fault = error.what();
      return;
    }
    if (kind_ == io::RecordKind::kLabelled) {
      names_.push_back(record.label);
      labels_.emplace(record.label, 0);
    }
    bool cut = truncate(example.source, options_.max_source_tokens, tokenizer_.suffix());
    if (kind_ == io::RecordKind::kSummary) {
      tokenizer_.encode(record.summary, {.add_special_tokens = false}, example.target);
      example.target.insert(example.target.end(), target_end_.begin(), target_end_.end());
      cut = truncate(example.target, options_.max_target_tokens, target_end_) || cut;
    }
    set_.truncated += cut;
    texts_ += record.text.empty() ? 0 : 1;
    report.tokens += example.source.size() + example.target.size();
    set_.examples.push_back(std::move(example));
  }

  /// Returns why a line is not a valid example, or an empty string.
  std::string fault_of(const io::Record& record, const std::vector<TokenId>& source) const {
    const bool labelled = kind_ == io::RecordKind::kLabelled;
    if (source.empty()) {
      return "key '" + std::string(labelled ? "text" : "document") +
             "': expected at least one token, got none";
    }
    if (labelled && !options_.label_names.empty() && !labels_.contains(record.label)) {
      return "key 'label': expected one of " + std::to_string(labels_.size()) +
             " known labels, got " + io::in_quotes(record.label);
    }
    return {};
  }

  void finish_labels() {
    if (kind_ != io::RecordKind::kLabelled) return;
    set_.label_names = options_.label_names;
    if (set_.label_names.empty()) {
      for (auto& [name, index] : labels_) {
        index = static_cast<int64_t>(set_.label_names.size());
        set_.label_names.push_back(name);
      }
    }
    for (size_t i = 0; i < names_.size(); ++i) set_.examples[i].label = labels_.at(names_[i]);
  }

  io::RecordKind kind_;
  const io::Tokenizer& tokenizer_;
  const ExampleOptions& options_;
  LabelIndex labels_;
  std::vector<std::string> names_;  // label of each example
  std::vector<TokenId> target_end_;
  uint64_t texts_ = 0;  // sources that are not empty
  ExampleSet set_;
};

/// Pads the vectors part(example) to the longest one.
template <typename Part>
PaddedBatch padded(const ExampleSet& set, std::span<const uint64_t> indices, TokenId pad,
                   Part&& part) {
  PaddedBatch batch;
  batch.rows = std::ssize(indices);
  for (const uint64_t i : indices) {
    batch.lengths.push_back(std::ssize(part(set.examples.at(i))));
    batch.length = std::max(batch.length, batch.lengths.back());
  }
  batch.ids.assign(static_cast<size_t>(batch.rows * batch.length), pad);
  for (int64_t row = 0; const uint64_t i : indices) {
    const auto& ids = part(set.examples[i]);
    std::copy(ids.begin(), ids.end(), batch.ids.begin() + row++ * batch.length);
  }
  return batch;
}

}  // namespace

ExampleSet read_examples(const std::string& path, io::RecordKind kind,
                         const io::Tokenizer& tokenizer, const ExampleOptions& options,
                         ReadReport* report) {
  if (kind == io::RecordKind::kText) {
    throw io::Error(path, "expected labelled texts or summaries, got plain text");
  }
  ReadReport result;
  ExampleSet set = ExampleReader(kind, tokenizer, options).run(path, result);
  if (report != nullptr) *report = result;
  return set;
}

std::pair<ExampleSet, ExampleSet> ExampleSet::split(double fraction, uint64_t seed) const {
  const SplitRule rule(examples.size(), fraction, seed);
  std::pair<ExampleSet, ExampleSet> parts;
  parts.first.label_names = parts.second.label_names = label_names;
  for (uint64_t i = 0; i < examples.size(); ++i) {
    (rule.second(i) ? parts.second : parts.first).examples.push_back(examples[i]);
  }
  return parts;
}

ShuffledIndices::ShuffledIndices(uint64_t size, const RowOptions& options)
    : size_(size), options_(options) {
  if (size == 0) throw io::Error("examples", "expected at least one, got none");
  if (options.batch_size < 1 || options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    throw io::Error("examples",
                    "expected batch_size and world_size of at least 1 and a rank below "
                    "world_size, got " +
                        std::to_string(options.batch_size) + ", " +
                        std::to_string(options.world_size) + ", " + std::to_string(options.rank));
  }
}

std::vector<uint64_t> ShuffledIndices::next() {
  std::vector<uint64_t> indices;
  for (int64_t i = 0; i < options_.batch_size * options_.world_size; ++i, ++taken_) {
    if (!options_.endless && taken_ >= size_) break;
    if (i % options_.world_size != options_.rank) continue;
    const uint64_t index = taken_ % size_;
    indices.push_back(options_.shuffle ? Permutation(size_, options_.seed, taken_ / size_)(index)
                                       : index);
  }
  return indices;
}

std::string ShuffledIndices::position() const {
  return write_position(kKind, {{"taken", taken_}},
                        {{"size", size_}, {"seed", options_.seed}, {"shuffle", options_.shuffle}});
}

void ShuffledIndices::seek(const std::string& position) {
  taken_ = read_position(position, kKind, {"taken"},
                         {{"size", size_}, {"seed", options_.seed}, {"shuffle", options_.shuffle}})
               .at(0);
}

PaddedBatch pad_sources(const ExampleSet& set, std::span<const uint64_t> indices, TokenId pad) {
  return padded(
      set, indices, pad, [](const Example& example) -> const auto& { return example.source; });
}

PaddedBatch pad_targets(const ExampleSet& set, std::span<const uint64_t> indices, TokenId begin,
                        TokenId pad) {
  return padded(set, indices, pad, [&](const Example& example) {
    std::vector<TokenId> ids = {begin};
    if (!example.target.empty()) {
      ids.insert(ids.end(), example.target.begin(), example.target.end() - 1);
    }
    return ids;
  });
}

std::vector<int64_t> target_labels(const ExampleSet& set, std::span<const uint64_t> indices) {
  size_t length = 1;
  for (const uint64_t i : indices) length = std::max(length, set.examples.at(i).target.size());
  std::vector<int64_t> labels(indices.size() * length, kIgnoredLabel);
  for (size_t row = 0; row < indices.size(); ++row) {
    const auto& target = set.examples[indices[row]].target;
    std::copy(target.begin(), target.end(), labels.begin() + static_cast<ptrdiff_t>(row * length));
  }
  return labels;
}

std::vector<int64_t> class_labels(const ExampleSet& set, std::span<const uint64_t> indices) {
  std::vector<int64_t> labels;
  for (const uint64_t i : indices) labels.push_back(set.examples.at(i).label);
  return labels;
}

}  // namespace diffattn::data
