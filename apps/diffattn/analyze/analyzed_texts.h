// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/diffattn/analyze/analyzed_model.h"
#include "diffattn/analysis/attention_maps.h"
#include "diffattn/analysis/report.h"
#include "diffattn/data/corpus.h"
#include "diffattn/data/examples.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {

struct TextOptions {
  std::string text, input, task, summary, data;
  std::vector<int64_t> prompt_ids;
  std::vector<std::string> settings;  // key=value of the task
  int64_t examples = 8;               // of a task, for the statistics
  int64_t seed = 0;
  int64_t seq_len = 0;    // tokens of --data at a time; 0: the most that the model reads
  bool truncate = false;  // cuts a text that is longer than the models read
};

/// A row that asks a question, and the columns of its answer.
struct AskedRow {
  int64_t row = 0;
  analysis::ColumnRange answer;
};

/// A text with labels of its tokens and the regions that its task knows.
struct KnownText {
  AnalyzedText text;
  std::string name;
  std::vector<std::string> labels, written_labels;
  std::vector<analysis::Region> regions;
  std::vector<analysis::ColumnRange> noise;
  std::vector<AskedRow> asked;
};

/// The texts of an analysis: one text whose maps are shown, and all texts for the statistics.
class AnalyzedTexts {
 public:
  /// Takes tokenizer and task of `model`. With TextOptions::truncate, cuts the shown text after
  /// `max_tokens`, the most that every model reads. Throws io::Error, and train::ConfigError for
  /// settings.
  AnalyzedTexts(const TextOptions& options, AnalyzedModel& model, int64_t max_tokens);

  const KnownText& shown() const { return shown_; }
  /// Returns the number of texts for the statistics.
  int64_t count() const;
  /// Calls `use` with every text for the statistics.
  void each(const std::function<void(const KnownText&)>& use) const;
  /// Returns "8 examples of the task", "this text" or "all of valid.txt".
  std::string counted() const;

 private:
  train::RunConfig task_config() const;
  KnownText text_of(const std::string& text, const std::string& name) const;
  KnownText task_example(int64_t index) const;
  KnownText sequence_example(int64_t index) const;
  KnownText source_example(int64_t index) const;
  KnownText beginning_of_data() const;
  void each_of_data(const std::function<bool(const KnownText&)>& use) const;
  void read_data();
  int64_t piece_length() const;
  void complete(KnownText& known) const;
  void truncate(std::vector<int64_t>& ids, const std::string& given_as) const;
  std::string run_file() const;

  const TextOptions options_;
  AnalyzedModel& model_;
  const int64_t max_tokens_;
  const train::RunConfig config_;  // of --task
  KnownText shown_;
  std::optional<data::Corpus> corpus_;  // --data of models that read text
  data::ExampleSet pairs_;              // --data of encoder-decoders
};

}  // namespace diffattn::app
