// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/analysis/attention_report.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"

/// Trains models of equal size on the same data, with the same seeds and steps, and measures them.
namespace diffattn::compare {

/// A model in the comparison.
struct Contender {
  std::string name;
  train::RunConfig config;
};

/// Parses "preset" or "preset:key=value:...". Returns `config` with that attention and those keys;
/// a key without a dot belongs to [model]. The text is also the name. Throws train::ConfigError.
Contender contender(const std::string& text, const train::RunConfig& config);

/// The machine and the software that train, as results name them.
struct Environment {
  std::string cpu;              // model name
  std::string gpu;              // model name; empty: the runs use the processor
  int64_t threads = 0;          // of all runs together
  std::string diffattn, torch;  // versions
};

struct CompareOptions {
  std::vector<Contender> models;  // the first "transformer" (else the first) is the baseline
  std::vector<int64_t> seeds = {11};
  /// Number of runs that train in parallel, each with its share of the threads. 0: one per thread
  /// on the CPU, but one in all if dropout uses torch's global generator; one on other devices.
  int64_t jobs = 0;
  int64_t samples = 64;  // sequences per number of needles and depth
  /// Receives the result of each run as NAME-seedN.json. compare() does not repeat a run whose file
  /// has the same settings. Empty: not saved.
  std::string runs_folder = {};
  std::string models_folder;     // receives the models as NAME-seedN/model; empty: not saved
  bool match_parameters = true;  // adapt intermediate_size to the baseline's parameter count
  /// Each model first tries these learning rates with the seed `seeds.front() + 1000`. Then it uses
  /// the one with the smallest validation loss. Empty: train.learning_rate.
  std::vector<double> learning_rates = {};
  int64_t rate_steps = 0;  // updates for each of these rates; 0: train.steps
  /// Task kLanguageModel: a text to evaluate after training, or a folder with one text per kind.
  /// Empty: none.
  std::string test = {};
  /// Results name it. compare() repeats a saved run of other versions.
  Environment environment = {};
};

/// A point of the learning curve: mean training loss since the previous point, and validation.
struct CurvePoint {
  int64_t step = 0;
  double loss = 0, valid_loss = 0, valid_accuracy = 0;
};

/// Callbacks, of which any may be empty. One thread at a time calls them.
struct CompareEvents {
  std::function<void(const std::string& what)> on_step;     // after each of total_steps() updates
  std::function<void(int64_t updates)> on_skip;             // for those of a run from a file
  std::function<void(const std::string& line)> on_message;  // after each run
  /// Called after each validation of a run, for example "diffllama seed 11".
  std::function<void(const std::string& run, const CurvePoint& point)> on_point;
  std::function<bool()> stop;  // called after every update
};

/// Results for one number of needles and one depth of the needle of the first question.
struct NeedleCell {
  int64_t needles = 0, asked = 0;
  double depth = 0;
  int64_t right = 0, questions = 0;              // all questions
  int64_t first_right = 0, first_questions = 0;  // the first questions, about the needle at `depth`
  /// Share of |A| in the row of the first question that falls on its needle, and on the noise; mean
  /// over heads and layers. `strongest_answer`: the largest mean of one head.
  double answer = 0, noise = 0, strongest_answer = 0;
};

/// The 1st, 10th and 100th largest magnitude and the median, as in Table 5 of the paper.
struct Outliers {
  double top1 = 0, top10 = 0, top100 = 0, median = 0;
};

/// Results of one model with one seed.
struct RunResult {
  int64_t seed = 0;
  std::vector<CurvePoint> curve;
  double loss = 0;          // training loss, mean over the last tenth of the steps
  train::Evaluation valid;  // after the last update
  train::Values metrics;    // macro_f1, rouge1, ...; focus, coverage, negative_mass, ...
  std::vector<NeedleCell> needles;
  Outliers attention_logits, hidden_states;  // 0 if not measured
  double train_seconds = 0;                  // while other runs train in parallel
  std::string machine;                       // the processor or GPU that trained
  bool finite = true;                        // false: non-finite updates were skipped
};

/// Results of one model with all seeds.
struct ModelResult {
  std::string name;
  int64_t parameters = 0;
  train::RunConfig config;      // resolved, of the first seed
  std::vector<RunResult> runs;  // in the order of seeds
  /// The learning rates of CompareOptions and their validation losses.
  std::vector<std::pair<double, double>> tried_rates = {};
  double tried_seconds = 0;  // of training with these rates
  double step_seconds = 0;   // median of single updates, with no other run in parallel
  int64_t step_bytes = 0;    // peak memory of all tensors in training
};

struct Comparison {
  train::Task task = train::Task::kNeedle;
  std::vector<int64_t> seeds;
  Environment environment;  // of rank 0
  size_t baseline = 0;      // index in models
  /// Tokens of the training text that the task reads; 0 if it generates its data.
  int64_t corpus_tokens = 0;
  std::vector<ModelResult> models;
  /// Attention of the models of the first seed on one validation example; for an encoder-decoder,
  /// its cross-attention.
  std::vector<analysis::ModelAttention> attention;
  /// The same example in words, with what each model made of it. Empty for the task kLanguageModel.
  std::optional<analysis::ReadExample> example;
};

/// Returns the number of updates of this process's runs, including those that try learning rates.
int64_t total_steps(const CompareOptions& options, const parallel::Collective& world);

/// Trains and measures all models. Throws the errors of training, and std::runtime_error if `stop`
/// returned true or a model has no finite loss with any learning rate.
///
/// The processes of `world` share the runs; each trains its runs alone, with the numbers that one
/// process would get. Only rank 0 returns attention, the example and the times of updates. If a
/// rank fails, it throws at once, and the others throw when they have finished their own runs.
Comparison compare(CompareOptions options, const CompareEvents& events = {},
                   const std::shared_ptr<parallel::Collective>& world = parallel::one_process());

}  // namespace diffattn::compare
