// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <thread>

#include "compare/measure.h"
#include "diffattn/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/summarizer.h"
#include "train/checkpoint_folder.h"
#include "train/tasks/evaluator.h"

namespace diffattn::compare {
namespace {

using train::RunConfig;

constexpr double kParameterTolerance = 0.005;
constexpr int64_t kSummaries = 64;  // for ROUGE

size_t baseline_of(const std::vector<Contender>& models) {
  const auto found = std::ranges::find_if(
      models, [](const Contender& c) { return c.config.model.attention == "transformer"; });
  return found == models.end() ? 0 : static_cast<size_t>(found - models.begin());
}

int64_t count_parameters(const RunConfig& resolved, const train::TaskData& data) {
  return train::new_task_model(resolved, data)->parameter_count();
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
    model.config.model.intermediate_size = std::max<int64_t>(
        1, width + std::llround(static_cast<double>(wanted - count) / static_cast<double>(each)));
  }
}

std::string file_name(std::string name) {
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return name;
}

/// Trains every model with every seed, several in parallel.
class Runner {
 public:
  /// If `measured` is false, it computes only the validation loss and saves no models.
  Runner(const CompareOptions& options, const CompareEvents& events, Comparison& comparison,
         bool measured = true)
      : options_(options), events_(events), comparison_(comparison), measured_(measured) {
    kept_.resize(options.models.size());
  }

  void run() {
    const int threads = at::get_num_threads();
    const int64_t jobs = std::clamp<int64_t>(job_count(threads), 1, job_total());
    if (jobs == 1) {
      work();
    } else {
      at::set_num_threads(std::max(1, threads / static_cast<int>(jobs)));
      std::vector<std::thread> workers;
      for (int64_t i = 0; i < jobs; ++i) {
        workers.emplace_back([this, threads, jobs] {
          at::set_num_threads(std::max(1, threads / static_cast<int>(jobs)));
          work();
        });
      }
      for (std::thread& worker : workers) worker.join();
      at::set_num_threads(threads);
    }
    if (failure_) std::rethrow_exception(failure_);
    if (stopped_) throw Error("compare: stopped by a signal; nothing was written");
  }

  /// Returns the models of the first seed.
  std::vector<Trained>& kept() { return kept_; }

 private:
  int64_t job_total() const {
    return static_cast<int64_t>(options_.models.size() * options_.seeds.size());
  }

  int64_t job_count(int threads) const {
    if (options_.jobs > 0) return options_.jobs;
    const RunConfig& config = options_.models.front().config;
    const bool random = config.task == train::Task::kClassify && config.classify.dropout > 0;
    return config.train.device == "cpu" && !random ? threads : 1;
  }

  void work() {
    for (;;) {
      const size_t job = next_.fetch_add(1);
      if (job >= static_cast<size_t>(job_total()) || stopped_) return;
      try {
        // Models of the same seed run next to each other.
        run_one(job % options_.models.size(), job / options_.models.size());
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        stopped_ = true;
      }
    }
  }

  Trained begin(size_t model, size_t seed) {
    const std::lock_guard lock(mutex_);  // torch's global generator draws the parameters
    Trained trained;
    trained.config = options_.models[model].config;
    trained.config.seed = options_.seeds[seed];
    trained.data = train::open_task_data(trained.config);
    auto task_model = train::new_task_model(trained.config, *trained.data);
    comparison_.models[model].parameters = task_model->parameter_count();
    if (seed == 0) comparison_.models[model].config = trained.config;
    trained.batches = trained.data->train_batches();
    trained.trainer = std::make_unique<train::Trainer>(std::move(task_model), trained.config);
    return trained;
  }

  void run_one(size_t model, size_t seed) {
    Trained trained = begin(model, seed);
    RunResult result;
    result.seed = options_.seeds[seed];
    const std::string label =
        comparison_.models[model].name + " seed " + std::to_string(options_.seeds[seed]);
    const auto start = std::chrono::steady_clock::now();
    learn(trained, label, result);
    result.train_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (stopped_) return;
    measure(trained, result);
    if (measured_) save(trained, model);
    const std::lock_guard lock(mutex_);
    if (events_.on_message) {
      events_.on_message(fmt::format("{}: validation loss {:.4f}, accuracy {:.3f}", label,
                                     result.valid.loss(), result.valid.accuracy()));
    }
    comparison_.models[model].runs[seed] = std::move(result);
    if (seed == 0) kept_[model] = std::move(trained);
  }

  void learn(Trained& trained, const std::string& label, RunResult& result) {
    const RunConfig::Train& t = trained.config.train;
    const auto valid = trained.data->valid_batches();
    if (!valid) {
      throw train::ConfigError(
          "data.valid_fraction: expected validation data to compare models on, got none");
    }
    const int64_t every = std::max<int64_t>(1, t.eval_every > 0 ? t.eval_every : t.steps / 40);
    double sum = 0, tail = 0;
    int64_t count = 0, tail_count = 0;
    for (int64_t step = 1; step <= t.steps && !stopped_; ++step) {
      const train::StepReport report = trained.trainer->step(*trained.batches);
      if (report.skipped) result.finite = false;
      sum += report.loss;
      ++count;
      if (step > t.steps - std::max<int64_t>(1, t.steps / 10)) {
        tail += report.loss;
        ++tail_count;
      }
      if (step % every == 0 || step == t.steps) {
        const train::Evaluation e = evaluate(trained, valid.get(), t.eval_batches);
        result.curve.push_back({step, sum / static_cast<double>(count), e.loss(), e.accuracy()});
        sum = 0;
        count = 0;
        const std::lock_guard lock(mutex_);
        if (events_.on_point) events_.on_point(label, result.curve.back());
      }
      report_step(label, report.loss, result);
    }
    result.loss = tail / static_cast<double>(std::max<int64_t>(1, tail_count));
  }

  void report_step(const std::string& label, double loss, const RunResult& result) {
    const std::lock_guard lock(mutex_);
    if (events_.on_step) {
      std::string what = label + "  loss " + std::to_string(loss).substr(0, 6);
      if (!result.curve.empty()) {
        what += "  accuracy " + std::to_string(result.curve.back().valid_accuracy).substr(0, 5);
      }
      events_.on_step(what);
    }
    if (events_.stop && events_.stop()) stopped_ = true;
  }

  static train::Evaluation evaluate(Trained& trained, train::BatchSource* valid, int64_t batches) {
    train::Evaluation result;
    const std::string here = valid->position();
    trained.trainer->model()->eval();
    for (int64_t i = 0; i < batches; ++i) {
      result +=
          train::evaluate(trained.trainer->task_model(), valid->next(), trained.config.train.dtype);
    }
    valid->seek(here);
    return result;
  }

  void measure(Trained& trained, RunResult& result) {
    train::TaskModel& model = trained.trainer->task_model();
    const auto valid = trained.data->valid_batches();
    train::Evaluator evaluator(model, trained.config.train.dtype);
    for (int64_t i = 0; i < 4 * trained.config.train.eval_batches; ++i) {
      evaluator.add(valid->next());
    }
    result.valid = evaluator.total();
    if (!measured_) return;
    if (evaluator.confusion().classes() > 0) {
      result.metrics.emplace_back("macro_f1", evaluator.confusion().macro_f1());
    }
    for (const auto& value : evaluator.attention()) result.metrics.push_back(value);
    if (trained.config.task == train::Task::kNeedle) {
      result.needles = measure_needles(model, trained.config, options_.samples);
    }
    if (trained.config.task == train::Task::kSummarize) {
      const data::Rouge r = train::summary_quality(model, *trained.data, kSummaries);
      result.metrics.insert(result.metrics.begin(),
                            {{"rouge1", r.rouge1}, {"rouge2", r.rouge2}, {"rouge_l", r.rouge_l}});
    }
    measure_outliers(model, valid->next(), result);
  }

  void save(Trained& trained, size_t model) const {
    if (options_.models_folder.empty()) return;
    const std::string run = options_.models_folder + "/" + file_name(options_.models[model].name) +
                            "-seed" + std::to_string(trained.config.seed);
    std::filesystem::create_directories(run);
    train::remove_unfinished(run);
    const std::string temporary = run + "/" + train::kUnfinished + "model";
    train::make_folder(temporary);
    trained.trainer->task_model().save(temporary);
    if (trained.data->tokenizer) {
      trained.data->tokenizer->write(temporary + "/" + io::kTokenizerFile);
    }
    train::sync_folder(temporary);
    train::replace_folder(temporary, run + "/model");
    io::write_text(run + "/config.toml", trained.config.to_toml());
  }

  const CompareOptions& options_;
  const CompareEvents& events_;
  Comparison& comparison_;
  bool measured_;
  std::vector<Trained> kept_;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stopped_{false};
};

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

/// Gives each model the learning rate with the smallest validation loss.
void tune(CompareOptions& options, const CompareEvents& events) {
  CompareOptions trials = options;
  trials.models.clear();
  trials.seeds = {options.seeds.front() + 1000};
  for (const Contender& model : options.models) {
    for (const double rate : options.learning_rates) {
      trials.models.push_back(model);
      trials.models.back().config.train.learning_rate = rate;
      trials.models.back().name += " at " + std::to_string(rate);
    }
  }
  Comparison tried;
  tried.models = empty_results(trials);
  Runner(trials, events, tried, /*measured=*/false).run();
  for (size_t i = 0; i < options.models.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t j = 0; j < options.learning_rates.size(); ++j) {
      const RunResult& run = tried.models[i * options.learning_rates.size() + j].runs.front();
      if (!(run.valid.loss() < least)) continue;
      least = run.valid.loss();
      options.models[i].config.train.learning_rate = options.learning_rates[j];
    }
    if (std::isinf(least)) {
      throw Error("compare: --learning-rates: expected at least one with which " +
                  options.models[i].name + " reaches a finite validation loss, got none");
    }
  }
}

}  // namespace

int64_t total_steps(const CompareOptions& options) {
  int64_t steps = 0;
  for (const Contender& model : options.models) steps += model.config.train.steps;
  return steps * static_cast<int64_t>(options.seeds.size() + options.learning_rates.size());
}

Comparison compare(CompareOptions options, const CompareEvents& events) {
  check_options(options);
  Comparison comparison;
  comparison.task = options.models.front().config.task;
  comparison.seeds = options.seeds;
  comparison.baseline = baseline_of(options.models);
  if (options.match_parameters) match_parameters(options.models, comparison.baseline);
  if (!options.learning_rates.empty()) tune(options, events);
  comparison.models = empty_results(options);
  Runner runner(options, events, comparison);
  runner.run();
  draw_example(runner.kept(), comparison);
  measure_speed(runner.kept(), comparison);
  return comparison;
}

}  // namespace diffattn::compare
