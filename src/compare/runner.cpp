// SPDX-License-Identifier: Apache-2.0
#include "compare/runner.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "compare/environment.h"
#include "compare/language.h"
#include "compare/model_digest.h"
#include "compare/saved_runs.h"
#include "compare/shared_runs.h"
#include "diffattn/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/summarizer.h"
#include "train/checkpoint_folder.h"
#include "train/tasks/evaluator.h"

namespace diffattn::compare {
namespace {

using train::RunConfig;

constexpr int64_t kSummaries = 64;  // for ROUGE

/// Trains this process's runs, several in parallel.
class Runner {
 public:
  Runner(const CompareOptions& options, const CompareEvents& events, Comparison& comparison,
         parallel::Collective& world, bool measured)
      : options_(options),
        events_(events),
        comparison_(comparison),
        world_(world),
        measured_(measured),
        own_(runs_of(options, world, world.rank())) {
    if (!options.test.empty()) texts_ = test_texts(options.test);
    kept_.resize(options.models.size());
  }

  void run() {
    const int threads = at::get_num_threads();
    const auto most = std::max<int64_t>(1, static_cast<int64_t>(own_.size()));
    const int64_t jobs = std::clamp<int64_t>(job_count(threads), 1, most);
    if (jobs == 1) {
      work();
    } else {
      at::set_num_threads(std::max(1, threads / static_cast<int>(jobs)));
      // A new thread works on GPU 0 until it chooses this process's.
      std::optional<c10::Device> gpu;
      if (torch::cuda::is_available()) gpu = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
      std::vector<std::thread> workers;
      for (int64_t i = 0; i < jobs; ++i) {
        workers.emplace_back([this, threads, jobs, gpu] {
          const c10::OptionalDeviceGuard guard(gpu);
          at::set_num_threads(std::max(1, threads / static_cast<int>(jobs)));
          work();
        });
      }
      for (std::thread& worker : workers) worker.join();
      at::set_num_threads(threads);
    }
    if (failure_) std::rethrow_exception(failure_);
    if (stopped_) {
      throw Error(options_.runs_folder.empty()
                      ? "compare: stopped by a signal; nothing was written"
                      : "compare: stopped by a signal; the same command continues with the runs "
                        "that are not finished");
    }
    gather_runs(world_, comparison_.models);
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      if (rank == world_.rank()) continue;
      for (const RunNumber& run : runs_of(options_, world_, rank)) report_run(run);
    }
  }

  /// Returns the models of the first seed, on rank 0 those of all processes. All ranks must call
  /// it.
  std::vector<Trained>& kept() {
    for (size_t model = 0; model < kept_.size(); ++model) {
      const int64_t owner = rank_of_run(world_, kept_.size(), model, 0);
      if (owner == 0) continue;
      if (world_.rank() == 0) kept_[model] = begin(model, 0);
      Trained& trained = kept_[model];
      trained.from_file = parallel::any_rank(world_, trained.from_file);
      if (trained.from_file) continue;
      send_to_first(world_, owner, trained.trainer ? trained.trainer->model().get() : nullptr);
    }
    return kept_;
  }

 private:
  int64_t job_count(int threads) const {
    if (options_.jobs > 0) return options_.jobs;
    const RunConfig& config = options_.models.front().config;
    const bool random = config.task == train::Task::kClassify && config.classify.dropout > 0;
    return config.train.device == "cpu" && !random ? threads : 1;
  }

  void work() {
    for (;;) {
      const size_t job = next_.fetch_add(1);
      if (job >= own_.size() || stopped_) return;
      try {
        run_one(own_[job].model, own_[job].seed);
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
    comparison_.corpus_tokens = trained.data->train_tokens.value_or(0);
    if (seed == 0) comparison_.models[model].config = trained.config;
    trained.batches = trained.data->train_batches();
    trained.trainer = std::make_unique<train::Trainer>(std::move(task_model), trained.config);
    return trained;
  }

  void run_one(size_t model, size_t seed) {
    Trained trained = begin(model, seed);
    RunResult result;
    result.seed = options_.seeds[seed];
    const std::string label = label_of({model, seed});
    const std::string file = result_file(trained, model);
    const RunKey key = file.empty() ? RunKey() : key_of(trained);
    const auto known =
        file.empty() || misses_model(trained, model) ? std::nullopt : load_run(file, key);
    if (known) {
      result = *known;
      trained.from_file = true;
    } else {
      const auto start = std::chrono::steady_clock::now();
      learn(trained, label, result);
      result.machine = machine_of(options_.environment);
      result.train_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (stopped_) return;
      measure(trained, result);
      if (measured_) save(trained, model);
      if (!file.empty()) save_run(file, key, result);
    }
    const std::lock_guard lock(mutex_);
    comparison_.models[model].runs[seed] = std::move(result);
    report_run({model, seed}, known ? ", from " + file : "");
    if (known && events_.on_skip) events_.on_skip(trained.config.train.steps);
    if (seed == 0 && measured_) kept_[model] = std::move(trained);
  }

  RunKey key_of(const Trained& trained) {
    std::string data = trained.batches->position();
    if (const auto valid = trained.data->valid_batches()) data += valid->position();
    std::call_once(texts_read_, [&] {
      if (texts_.empty()) return;
      test_ = fingerprint_of(texts_, *trained.data->tokenizer, trained.config);
    });
    return {.config = trained.config.to_toml(),
            .source = source_of(trained.config.model.from),
            .data = data,
            .test = test_,
            .software = software_of(options_.environment),
            .measured = measured_,
            .samples = options_.samples};
  }

  /// Returns the digest of the model folder from which runs start, or an empty text for none.
  std::string source_of(const std::string& folder) {
    if (folder.empty()) return "";
    const std::lock_guard lock(sources_mutex_);
    const auto known = sources_.find(folder);
    if (known != sources_.end()) return known->second;
    return sources_[folder] = model_digest(folder);
  }

  std::string label_of(const RunNumber& run) const {
    return comparison_.models[run.model].name + " seed " + std::to_string(options_.seeds[run.seed]);
  }

  void report_run(const RunNumber& run, const std::string& origin = "") const {
    if (!events_.on_message) return;
    const train::Evaluation& valid = comparison_.models[run.model].runs[run.seed].valid;
    events_.on_message(fmt::format("{}: validation loss {:.4f}, accuracy {:.3f}{}", label_of(run),
                                   valid.loss(), valid.accuracy(), origin));
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
    const bool language = trained.config.task == train::Task::kLanguageModel;
    train::Evaluator evaluator(model, trained.config.train.dtype);
    if (language) evaluator.count_bytes(train::token_bytes(*trained.data->tokenizer));
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
    if (language) measure_language(trained, evaluator, texts_, result);
    measure_outliers(model, rows_of(valid->next(), trained.config.train.seq_len), result);
  }

  /// Returns a packed batch as rows in which documents see each other; other batches as they are.
  static train::Batch rows_of(train::Batch batch, int64_t seq_len) {
    if (!batch.mask.cu_seqlens_q()) return batch;
    train::Batch rows;
    const int64_t count = batch.ids.numel() / seq_len;
    rows.ids = batch.ids.slice(0, 0, count * seq_len).view({count, seq_len});
    return rows;
  }

  /// Returns the name of a run in the folders of a comparison.
  std::string run_name(const Trained& trained, size_t model) const {
    return file_name_of(options_.models[model].name) + "-seed" +
           std::to_string(trained.config.seed);
  }

  std::string result_file(const Trained& trained, size_t model) const {
    if (options_.runs_folder.empty()) return "";
    return options_.runs_folder + "/" + run_name(trained, model) + ".json";
  }

  /// True if the comparison keeps models and does not have that of this run.
  bool misses_model(const Trained& trained, size_t model) const {
    return measured_ && !options_.models_folder.empty() &&
           !std::filesystem::exists(options_.models_folder + "/" + run_name(trained, model) +
                                    "/model");
  }

  void save(Trained& trained, size_t model) const {
    if (options_.models_folder.empty()) return;
    const std::string run = options_.models_folder + "/" + run_name(trained, model);
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
  parallel::Collective& world_;
  bool measured_;
  std::vector<RunNumber> own_;
  std::vector<TestText> texts_;
  std::once_flag texts_read_;
  std::string test_;  // fingerprint of the texts
  std::mutex sources_mutex_;
  std::map<std::string, std::string> sources_;  // digests by folder
  std::vector<Trained> kept_;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace

std::vector<Trained> train_all(const CompareOptions& options, const CompareEvents& events,
                               Comparison& comparison, parallel::Collective& world, bool measured) {
  Runner runner(options, events, comparison, world, measured);
  runner.run();
  if (!measured) return {};
  return std::move(runner.kept());
}

}  // namespace diffattn::compare
