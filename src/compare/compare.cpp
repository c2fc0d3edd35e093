// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compare/language.h"
#include "compare/measure.h"
#include "compare/runner.h"
#include "compare/shared_runs.h"
#include "diffattn/error.h"

namespace diffattn::compare {
namespace {

using train::RunConfig;

constexpr double kParameterTolerance = 0.005;
constexpr int64_t kAlignment = 8;  // GPUs multiply matrices of such widths fastest

size_t baseline_of(const std::vector<Contender>& models) {
  const auto found = std::ranges::find_if(
      models, [](const Contender& c) { return c.config.model.attention == "transformer"; });
  return found == models.end() ? 0 : static_cast<size_t>(found - models.begin());
}

int64_t count_parameters(const RunConfig& resolved, const train::TaskData& data) {
  return train::new_task_model(resolved, data)->parameter_count();
}

/// Returns the nearest aligned width if it is within `tolerance` of the exact one, else the
/// nearest.
int64_t matching_width(double exact, double tolerance) {
  const int64_t aligned = kAlignment * std::llround(exact / kAlignment);
  if (std::abs(static_cast<double>(aligned) - exact) < tolerance && aligned > 0) return aligned;
  return std::max<int64_t>(1, std::llround(exact));
}

/// Changes the feed-forward width of each model whose parameter count differs from the baseline's
/// by kParameterTolerance or more. No attention depends on this width.
void match_parameters(std::vector<Contender>& models, size_t baseline) {
  RunConfig base = models[baseline].config;
  const auto base_data = train::open_task_data(base);
  const int64_t wanted = count_parameters(base, *base_data);
  for (size_t i = 0; i < models.size(); ++i) {
    if (i == baseline) continue;
    Contender& model = models[i];
    RunConfig resolved = model.config;
    const auto data = train::open_task_data(resolved);
    const int64_t width = resolved.model.intermediate_size;
    const int64_t count = count_parameters(resolved, *data);
    if (std::abs(static_cast<double>(count - wanted)) <
        kParameterTolerance * static_cast<double>(wanted)) {
      continue;
    }
    resolved.model.intermediate_size = width + 1;
    const int64_t each = count_parameters(resolved, *data) - count;
    if (each == 0) {
      throw train::ConfigError(
          fmt::format("--models: {}: expected as many parameters as {}, {}, got {} in model.from; "
                      "--as-given compares them as they are",
                      model.name, models[baseline].name, wanted, count));
    }
    const double change = static_cast<double>(wanted - count) / static_cast<double>(each);
    model.config.model.intermediate_size = matching_width(
        static_cast<double>(width) + change,
        kParameterTolerance * static_cast<double>(wanted) / static_cast<double>(each));
  }
}

constexpr double kMaxLearningRate = 10.0;  // the limit of train.learning_rate

void check_options(const CompareOptions& options) {
  if (options.models.empty()) throw train::ConfigError("--models: expected at least one, got none");
  if (options.seeds.empty()) throw train::ConfigError("--seeds: expected at least one, got none");
  std::vector<std::string> names;
  for (const Contender& model : options.models) {
    if (std::ranges::find(names, model.name) != names.end()) {
      throw train::ConfigError("--models: expected different models, got '" + model.name +
                               "' twice");
    }
    names.push_back(model.name);
  }
  std::vector<int64_t> seeds = options.seeds;
  std::ranges::sort(seeds);
  const auto twice = std::ranges::adjacent_find(seeds);
  if (twice != seeds.end()) {
    throw train::ConfigError("--seeds: expected different seeds, got " + std::to_string(*twice) +
                             " twice");
  }
  for (const double rate : options.learning_rates) {
    if (rate > 0.0 && rate <= kMaxLearningRate) continue;
    throw train::ConfigError(fmt::format(
        "--learning-rates: expected numbers above 0, at most {}, got {}", kMaxLearningRate, rate));
  }
}

std::vector<ModelResult> empty_results(const CompareOptions& options) {
  std::vector<ModelResult> results;
  for (const Contender& model : options.models) {
    ModelResult result;
    result.name = model.name;
    result.runs.resize(options.seeds.size());
    results.push_back(std::move(result));
  }
  return results;
}

/// Returns the number of updates in which a model tries a learning rate.
int64_t rate_steps(const CompareOptions& options, const Contender& model) {
  return options.rate_steps > 0 ? options.rate_steps : model.config.train.steps;
}

/// Returns a comparison of every model with every learning rate, with another seed.
CompareOptions trials_of(const CompareOptions& options) {
  CompareOptions trials = options;
  trials.models.clear();
  trials.seeds = {options.seeds.front() + 1000};
  for (const Contender& model : options.models) {
    for (const double rate : options.learning_rates) {
      trials.models.push_back(model);
      trials.models.back().config.train.learning_rate = rate;
      trials.models.back().config.train.steps = rate_steps(options, model);
      trials.models.back().name += fmt::format(" at {:g}", rate);
    }
  }
  return trials;
}

/// Gives each model the learning rate with the smallest validation loss. Returns a result for each
/// model that has only the rates it tried, with their validation losses and the time they took.
std::vector<ModelResult> tune(CompareOptions& options, const CompareEvents& events,
                              parallel::Collective& world) {
  const CompareOptions trials = trials_of(options);
  Comparison tried;
  tried.models = empty_results(trials);
  train_all(trials, events, tried, world, /*measured=*/false);
  std::vector<ModelResult> results = empty_results(options);
  for (size_t i = 0; i < options.models.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t j = 0; j < options.learning_rates.size(); ++j) {
      const RunResult& run = tried.models[i * options.learning_rates.size() + j].runs.front();
      results[i].tried_rates.emplace_back(options.learning_rates[j], run.valid.loss());
      results[i].tried_seconds += run.train_seconds;
      if (!(run.valid.loss() < least)) continue;
      least = run.valid.loss();
      options.models[i].config.train.learning_rate = options.learning_rates[j];
    }
    if (std::isinf(least)) {
      throw Error("compare: --learning-rates: expected at least one with which " +
                  options.models[i].name + " reaches a finite validation loss, got none");
    }
  }
  return results;
}

}  // namespace

int64_t total_steps(const CompareOptions& options, const parallel::Collective& world) {
  int64_t steps = 0;
  const auto add = [&](const CompareOptions& runs) {
    for (const RunNumber& run : runs_of(runs, world, world.rank())) {
      steps += runs.models[run.model].config.train.steps;
    }
  };
  add(options);
  if (!options.learning_rates.empty()) add(trials_of(options));
  return steps;
}

Comparison compare(CompareOptions options, const CompareEvents& events,
                   const std::shared_ptr<parallel::Collective>& world) {
  check_options(options);
  Comparison comparison;
  comparison.task = options.models.front().config.task;
  comparison.seeds = options.seeds;
  comparison.environment = options.environment;
  comparison.baseline = baseline_of(options.models);
  if (options.match_parameters) match_parameters(options.models, comparison.baseline);
  if (!options.test.empty()) {
    if (comparison.task != train::Task::kLanguageModel) {
      throw train::ConfigError("--test: expected task lm, got " +
                               train::task_name(comparison.task));
    }
    check_test_texts(test_texts(options.test), options.models.front().config);
  }
  comparison.models =
      options.learning_rates.empty() ? empty_results(options) : tune(options, events, *world);
  std::vector<Trained> trained = train_all(options, events, comparison, *world);
  if (comparison.task == train::Task::kLanguageModel) add_tokens_to_baseline(comparison);
  if (world->rank() > 0) return comparison;
  draw_example(trained, comparison);
  measure_speed(trained, comparison);
  return comparison;
}

}  // namespace diffattn::compare
