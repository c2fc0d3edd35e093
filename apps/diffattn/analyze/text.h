// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/diffattn/analyze/model.h"
#include "diffattn/analysis/attention_maps.h"
#include "diffattn/analysis/report.h"
#include "diffattn/data/corpus.h"
#include "diffattn/data/examples.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {

struct TextOptions {
  std::string text, input, task, summary, data;
  std::vector<int64_t> prompt_ids;
  std::vector<std::string> settings;  // of the task: key=value
  int64_t examples = 8;               // of a task, that are counted
  int64_t seed = 0;
  int64_t seq_len = 0;  // tokens of data that are read at a time; 0: what the model can
};

/// A question of a task: what the row `asked` should look at, and what is noise.
struct AskedRow {
  int64_t row = 0;
  analysis::ColumnRange answer;
};

/// A text with everything that is known about it.
struct KnownText {
  AnalyzedText text;
  std::string name;
  std::vector<std::string> labels, written_labels;
  std::vector<analysis::Region> regions;  // of the text
  std::vector<analysis::ColumnRange> noise;
  std::vector<AskedRow> asked;
};

/// What is analysed: one text whose maps are shown, and all that are counted.
class AnalyzedTexts {
 public:
  /// Tokens and tasks are those of `model`. Throws io::Error, and train::ConfigError for settings.
  AnalyzedTexts(const TextOptions& options, AnalyzedModel& model);

  const KnownText& shown() const { return shown_; }
  /// How many texts are counted.
  int64_t count() const;
  /// Hands over every text that is counted, one at a time.
  void each(const std::function<void(const KnownText&)>& use) const;
  /// "8 examples of the task", "this text", "all of valid.txt".
  std::string counted() const;

 private:
  train::RunConfig task_config() const;
  KnownText text_of(const std::string& text, const std::string& name) const;
  KnownText task_example(int64_t index) const;
  KnownText sequence_example(int64_t index) const;
  KnownText source_example(int64_t index) const;
  void each_of_data(const std::function<bool(const KnownText&)>& use) const;
  void read_data();
  int64_t piece_length() const;
  void complete(KnownText& known) const;
  std::string run_file() const;

  const TextOptions options_;
  AnalyzedModel& model_;
  const train::RunConfig config_;  // of --task
  KnownText shown_;
  std::optional<data::Corpus> corpus_;  // of --data
  data::ExampleSet pairs_;              // the same for an encoder-decoder
};

}  // namespace diffattn::app
