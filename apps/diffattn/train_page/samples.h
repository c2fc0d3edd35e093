// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "diffattn/train/task_model.h"

namespace diffattn::app {

/// A continuation that a model wrote during its training.
struct Sample {
  int64_t step = 0;
  std::string prompt, text;
};

/// Returns the lines of train.sample_prompts that are not empty.
std::vector<std::string> prompts_of(const std::string& lines);

/// Continues every prompt by up to 48 tokens, always with the likeliest one: the random state of
/// the training stays as it is.
std::vector<Sample> write_samples(train::TaskModel& model, const io::Tokenizer& tokenizer,
                                  const std::vector<std::string>& prompts, int64_t step);

/// The file samples.jsonl of a run folder, with one sample per line.
class SampleLog {
 public:
  /// Keeps the samples up to `step`: a resumed run writes the later ones again.
  SampleLog(const std::string& folder, int64_t step);
  void add(const std::vector<Sample>& samples);
  const std::vector<Sample>& all() const { return samples_; }

 private:
  std::string path_;
  std::vector<Sample> samples_;
};

}  // namespace diffattn::app
