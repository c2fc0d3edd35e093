// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diffattn/analysis/attention_report.h"
#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"

/// Models of equal size on the same data, with the same seeds and steps.
namespace diffattn::compare {

/// A model that takes part.
struct Contender {
  std::string name;
  train::RunConfig config;
};

/// "preset" or "preset:key=value:...": the config with that attention and those keys, `model.` in
/// front of keys without a dot. The text is the name. Throws train::ConfigError.
Contender contender(const std::string& text, const train::RunConfig& config);

struct CompareOptions {
  std::vector<Contender> models;  // the first "transformer" (else the first) is the baseline
  std::vector<int64_t> seeds = {11};
  /// Runs that train at a time, each with its share of the threads; 0: one per thread on the CPU
  /// (one in all where dropout draws from the common generator), one on other devices.
  int64_t jobs = 0;
  int64_t samples = 64;       // sequences per number of needles and depth
  std::string models_folder;  // where trained models go, NAME-seedN/model; empty: nowhere
  bool match_parameters = true;
  /// Each model first tries these with a seed of its own (the first one + 1000) and goes on with
  /// the one of smallest validation loss. Empty: train.learning_rate as it is.
  std::vector<double> learning_rates = {};
};

/// Training loss since the point before, and validation.
struct CurvePoint {
  int64_t step = 0;
  double loss = 0, valid_loss = 0, valid_accuracy = 0;
};

/// Any may be empty. Called by one thread at a time.
struct CompareEvents {
  std::function<void(const std::string& what)> on_step;     // one of total_steps()
  std::function<void(const std::string& line)> on_message;  // something ended
  /// A run ("diffllama seed 11") has been validated.
  std::function<void(const std::string& run, const CurvePoint& point)> on_point;
  std::function<bool()> stop;  // asked after every update
};

/// Needles of which the first asked for lies at a depth.
struct NeedleCell {
  int64_t needles = 0, asked = 0;
  double depth = 0;
  int64_t right = 0, questions = 0;              // all of them
  int64_t first_right = 0, first_questions = 0;  // the one at that depth
  /// Share of a row's sum of |A| that falls on the needle asked for, and on the noise; mean over
  /// heads and layers. `strongest_answer`: of the head that has the largest mean.
  double answer = 0, noise = 0, strongest_answer = 0;
};

/// Largest magnitudes, as Table 5 of the paper has them.
struct Outliers {
  double top1 = 0, top10 = 0, top100 = 0, median = 0;
};

/// One model with one seed.
struct RunResult {
  int64_t seed = 0;
  std::vector<CurvePoint> curve;
  double loss = 0;          // training, mean over the last tenth of the steps
  train::Evaluation valid;  // after the last step
  train::Values metrics;    // macro_f1, rouge1, ...; focus, coverage, negative_mass, ...
  std::vector<NeedleCell> needles;
  Outliers attention_logits, hidden_states;  // 0 where a model has none
  double train_seconds = 0;                  // side by side with others
  bool finite = true;                        // false: updates that were not were left out
};

struct ModelResult {
  std::string name;
  int64_t parameters = 0;
  train::RunConfig config;      // resolved, of the first seed
  std::vector<RunResult> runs;  // in the order of seeds
  double step_seconds = 0;      // one update, median, alone on the machine, interleaved
  int64_t step_bytes = 0;       // most that tensors held while training
};

struct Comparison {
  std::string task;
  std::vector<int64_t> seeds;
  size_t baseline = 0;  // in models
  std::vector<ModelResult> models;
  /// Attention on one example, of the first seed; empty for tasks without questions.
  std::vector<analysis::ModelAttention> attention;
};

int64_t total_steps(const CompareOptions& options);

/// Trains and measures. Throws what training throws, and std::runtime_error when `stop` said so or
/// a model gets a finite loss with none of the learning rates.
Comparison compare(CompareOptions options, const CompareEvents& events = {});

struct MeanSpread {
  double mean = 0, spread = 0;  // spread: sample standard deviation, 0 for one value
};
MeanSpread mean_and_spread(const std::vector<double>& values);

/// Number of a run by name: "loss", "valid_loss", "accuracy", "steps_to_0.9" (the first evaluation
/// with that accuracy or a better one), those of `metrics`, "needles.4", "answer", "noise",
/// "logits_top1", "logits_median", "hidden_top1", "hidden_median". NaN where it has none.
double number_of(const RunResult& run, const std::string& name);
/// The names for which some run has a number.
std::vector<std::string> number_names(const Comparison& comparison);
MeanSpread number_of(const ModelResult& model, const std::string& name);

}  // namespace diffattn::compare
