// SPDX-License-Identifier: Apache-2.0
//
// diffattn train: from a run file to a run folder.

#include <fmt/core.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "diffattn/io/tokenizer.h"
#include "train/new_model.h"
#include "diffattn/train/run.h"
#include "train/stop_signal.h"
#include "diffattn/train/task_data.h"
#include "apps/diffattn/machine/heap.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/terminal/progress.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNonFinite = 3;
constexpr int kOutOfMemory = 4;
constexpr char kLessMemory[] =
    "To need less: lower train.batch_size (and raise train.accumulate), or set "
    "train.activation_checkpointing = true (with train.keep_attention = \"nothing\" for the "
    "least).";

struct TrainOptions {
  std::string config, out, resume;
  std::vector<std::string> set;
  bool dry_run = false, json = false, skip_bad = false;
};

/// Paths may be any bytes.
std::string dumped_train(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
}

/// Of the whole model, which may be larger than this machine: layers are alike, so two are enough.
int64_t parameters_of(train::RunConfig config, const train::TaskData& data) {
  const int64_t layers = config.model.num_hidden_layers;
  const auto count = [&](int64_t some) {
    config.model.num_hidden_layers = some;
    return train::new_task_model(config, data)->parameter_count();
  };
  const int64_t one = count(1);
  return layers == 1 ? one : one + (layers - 1) * (count(2) - one);
}

/// The estimate of memory is fitted to causal models of tokens.
bool memory_is_estimated(const train::RunConfig& config) {
  return config.task != "classify" && config.task != "summarize";
}

bool may_warn_of_memory(const train::RunConfig& config) {
  return config.train.device == "cpu" && memory_is_estimated(config);
}

/// The operating system kills who takes too much, without a word: so it is said before.
void warn_of_memory(const train::RunConfig& config, int64_t parameters) {
  const int64_t needed = train::estimate_memory(config, parameters).total();
  const Machine machine = this_machine();
  if (needed <= machine.memory_bytes) return;
  fmt::print(
      stderr, "diffattn: this run needs about {}, and the {} {}. {}\n", mebibytes(needed),
      machine.memory_limited ? "container or control group it is in may take" : "machine has",
      mebibytes(machine.memory_bytes), kLessMemory);
}

/// What a run would be, without starting it.
int dry_run(const train::RunConfig& config, const train::TaskData& data, bool json) {
  const int64_t parameters = parameters_of(config, data);
  const train::MemoryEstimate memory = train::estimate_memory(config, parameters);
  const bool estimated = memory_is_estimated(config);
  if (may_warn_of_memory(config)) warn_of_memory(config, parameters);
  const int64_t per_step = config.train.batch_size * config.train.accumulate * config.train.seq_len;
  const Json train_tokens = data.train_tokens ? Json(*data.train_tokens) : Json();
  if (json) {
    const Json result{{"parameters", parameters},
                      {"steps", config.train.steps},
                      {"tokens_per_step", per_step},
                      {"train_tokens", train_tokens},
                      {"memory_bytes", estimated ? Json(memory.total()) : Json()},
                      {"config", config.to_toml()}};
    fmt::print("{}\n", dumped_train(result));
    return 0;
  }
  fmt::print("{}\n", config.to_toml());
  fmt::print("parameters   {:>14}\n", parameters);
  fmt::print("steps        {:>14}  of {} tokens, {}\n", config.train.steps, per_step,
             data.train_tokens
                 ? fmt::format("{:.2f} times through the {} of the data",
                               static_cast<double>(per_step * config.train.steps) /
                                   static_cast<double>(std::max<int64_t>(1, *data.train_tokens)),
                               *data.train_tokens)
                 : "generated without end");
  if (!estimated) {
    fmt::print("memory       not estimated for this task\n");
    return 0;
  }
  // On a GPU the process itself takes none of it.
  const std::string program =
      memory.runtime > 0 ? fmt::format("program and heap {}, ", mebibytes(memory.runtime)) : "";
  fmt::print(
      "memory       {:>14}  {}weights {}, optimiser {}, then activations {} and work {}, or "
      "gradients {}\n",
      mebibytes(memory.total()), program, mebibytes(memory.parameters), mebibytes(memory.optimizer),
      mebibytes(memory.activations), mebibytes(memory.working), mebibytes(memory.gradients));
  return 0;
}

/// A bar on a terminal, a line every now and then elsewhere.
class Reporter {
 public:
  Reporter(const train::RunConfig& config, int64_t done)
      : config_(config), bar_("train", config.train.steps, done) {}

  void step(const train::StepReport& report) {
    const std::string line =
        fmt::format("loss {:.4f}  lr {:.2e}  |g| {:.2f}  {:.0f} tok/s  MFU {:.0f} %{}", report.loss,
                    report.learning_rate, report.gradient_norm,
                    static_cast<double>(report.tokens) / report.seconds, 100.0 * report.utilisation,
                    report.skipped ? "  skipped: not finite" : "");
    bar_.step(line);
    last_loss_ = report.loss;
    if (!bar_.shown() && (report.step % config_.train.log_every == 0 || report.skipped)) {
      fmt::print(stderr, "step {}/{}  {}\n", report.step, config_.train.steps, line);
    }
  }
  void evaluation(int64_t step, const train::Evaluation& result, bool best) {
    bar_.clear();
    fmt::print(stderr, "step {}: validation loss {:.4f}, perplexity {}, accuracy {:.3f}{}\n", step,
               result.loss(), perplexity_text(result.perplexity(), 2), result.accuracy(),
               best ? "  (best)" : "");
    valid_loss_ = result.loss();
    valid_accuracy_ = result.accuracy();
  }
  double last_loss() const { return last_loss_; }
  double valid_loss() const { return valid_loss_; }
  double valid_accuracy() const { return valid_accuracy_; }

 private:
  const train::RunConfig& config_;
  Progress bar_;
  double last_loss_ = std::nan(""), valid_loss_ = std::nan(""), valid_accuracy_ = std::nan("");
};

int finish(train::Outcome outcome, train::Run& run, const Reporter& reporter,
           const TrainOptions& options, const std::string& folder) {
  const train::Progress& progress = run.trainer().progress;
  const char* what = outcome == train::Outcome::kDone      ? "done"
                     : outcome == train::Outcome::kStopped ? "stopped"
                                                           : "not finite";
  if (options.json) {
    const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
    const bool has_model = std::filesystem::exists(run.model_folder());
    const Json result{{"outcome", what},
                      {"step", progress.step},
                      {"tokens", progress.tokens},
                      {"skipped", progress.skipped},
                      {"loss", number(reporter.last_loss())},
                      {"valid_loss", number(reporter.valid_loss())},
                      {"valid_accuracy", number(reporter.valid_accuracy())},
                      {"folder", folder},
                      {"model", has_model ? Json(run.model_folder()) : Json()}};
    fmt::print("{}\n", dumped_train(result));
  } else if (outcome == train::Outcome::kDone) {
    fmt::print("model in {}\n", run.model_folder());
  }
  if (outcome == train::Outcome::kStopped) {
    fmt::print(stderr, "stopped at step {}; go on with: diffattn train --resume {}\n",
               progress.step, folder);
  }
  if (outcome == train::Outcome::kNonFinite) {
    fmt::print(
        stderr,
        "diffattn: loss or gradient was not finite {} times in a row; the last checkpoint is "
        "intact. Lower train.learning_rate or train.clip_norm, then --resume {}\n",
        progress.skipped_in_row, folder);
    return kNonFinite;
  }
  return 0;
}

int run_train(const TrainOptions& options) {
  const bool resumed = !options.resume.empty();
  const std::string folder = resumed ? options.resume : options.out;
  train::RunConfig config =
      load_run_config(resumed ? folder + "/config.toml" : options.config, options.set);
  if (options.skip_bad) config.data.skip_bad = true;
  if (options.skip_bad && !config.reads("data.skip_bad")) {
    fmt::print(stderr, "diffattn: --skip-bad has no effect: the task {} is generated\n",
               config.task);
  }
  const auto task = train::open_task(config);
  const train::TaskData& data = *task;
  if (data.skipped_lines > 0) {
    fmt::print(stderr, "diffattn: bad lines skipped: {}\n", data.skipped_lines);
  }
  if (data.truncated > 0) {
    fmt::print(stderr, "diffattn: texts longer than {} tokens, which lost their end: {}\n",
               config.train.seq_len, data.truncated);
  }
  if (options.dry_run) return dry_run(config, data, options.json);
  if (const std::string problem = device_problem(config.train.device); !problem.empty()) {
    throw train::ConfigError("train.device: " + problem);
  }
  // Who computes again to save memory wants freed blocks back at once, not kept for the next one.
  config.train.activation_checkpointing ? return_freed_memory() : keep_freed_memory();
  std::vector<std::pair<std::string, std::string>> extra_files;
  if (data.tokenizer) extra_files.emplace_back(io::kTokenizerFile, data.tokenizer->to_json());
  if (may_warn_of_memory(config)) warn_of_memory(config, parameters_of(config, data));
  train::Run run(folder, config, train::new_task_model(config, data), extra_files);
  const auto train_source = data.train_batches();
  const auto valid_source = data.valid_batches();
  const bool found = run.resume(*train_source);
  if (resumed && !found) fmt::print(stderr, "{}: no checkpoint yet, starting anew\n", folder);
  if (!resumed && found) {
    throw train::ConfigError(folder + ": holds a run already; --resume it or choose another --out");
  }
  const int64_t done = run.trainer().progress.step;
  if (done >= config.train.steps) {
    fmt::print(stderr, "{}: is at step {} of {}; --set train.steps=N goes further\n", folder, done,
               config.train.steps);
  }
  Reporter reporter(config, done);
  const train::StopSignal signal;
  train::RunEvents events;
  events.on_step = [&](const auto& report, const auto&) { reporter.step(report); };
  events.on_evaluation = [&](int64_t step, const auto& result, bool best) {
    reporter.evaluation(step, result, best);
  };
  events.stop = [&] { return signal.received() != 0; };
  return finish(run.go(*train_source, valid_source.get(), events), run, reporter, options, folder);
}

int run_guarded(const TrainOptions& options) {
  try {
    return run_train(options);
  } catch (const c10::Error& error) {
    // torch's CPU allocator has no exception type of its own for this.
    const std::string message = error.what_without_backtrace();
    const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                           message.find("can't allocate memory") != std::string::npos;
    if (!no_memory) throw;
    fmt::print(stderr, "diffattn: {}\n", message);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "diffattn: out of memory\n");
  }
  fmt::print(stderr, "diffattn: {} No file was harmed.\n", kLessMemory);
  return kOutOfMemory;
}

}  // namespace

Run add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "Train a model from a run file");
  CLI::Option* config = verb->add_option("--config", options->config, "run file (TOML)");
  CLI::Option* out = verb->add_option("--out", options->out, "run folder to make");
  verb->add_option("--resume", options->resume, "run folder to go on with")
      ->excludes(config)
      ->excludes(out);
  verb->add_option("--set", options->set, "override a key: train.steps=500")
      ->allow_extra_args(false);
  verb->add_flag("--skip-bad", options->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--dry-run", options->dry_run, "only say what would be done and what it needs");
  verb->add_flag("--json", options->json, "one JSON object on standard output");
  verb->footer("Example:\n  diffattn train --config run.toml --out runs/a --set train.steps=500");
  return [options] {
    if (options->resume.empty() && options->out.empty() && !options->dry_run) {
      throw train::ConfigError("train: expected --out or --resume");
    }
    return run_guarded(*options);
  };
}

}  // namespace diffattn::app
