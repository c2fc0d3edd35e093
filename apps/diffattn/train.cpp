// SPDX-License-Identifier: Apache-2.0
//
// diffattn train: trains a model from a run file into a run folder.

#include <fmt/core.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <new>

#include "apps/diffattn/machine/heap.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/terminal/data_warnings.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/train/run.h"
#include "diffattn/train/task_data.h"
#include "train/memory_estimate.h"
#include "train/stop_signal.h"

namespace diffattn::app {
namespace {

constexpr int kNonFinite = 3;
constexpr int kOutOfMemory = 4;
constexpr char kLessMemory[] =
    "To use less memory, lower train.batch_size and raise train.accumulate, or set "
    "train.activation_checkpointing = true (train.keep_attention = \"nothing\" saves the most).";

struct TrainOptions {
  std::string config, out, resume;
  std::vector<std::string> set;
  bool dry_run = false, json = false, skip_bad = false;
};

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
}

/// Computes the parameter count from models of one and two layers, since all layers are alike. The
/// whole model may not fit into the memory of this machine.
int64_t parameters_of(train::RunConfig config, const train::TaskData& data) {
  const int64_t layers = config.model.num_hidden_layers;
  const auto count = [&](int64_t some) {
    config.model.num_hidden_layers = some;
    return train::new_task_model(config, data)->parameter_count();
  };
  const int64_t one = count(1);
  return layers == 1 ? one : one + (layers - 1) * (count(2) - one);
}

/// True if estimate_memory() is valid for the task: it is calibrated on causal models only.
bool memory_is_estimated(const train::RunConfig& config) {
  return config.task != train::Task::kClassify && config.task != train::Task::kSummarize;
}

bool may_warn_of_memory(const train::RunConfig& config) {
  return config.train.device == "cpu" && memory_is_estimated(config);
}

/// Linux kills a process that runs out of memory without a message, so we warn first.
void warn_of_memory(const train::RunConfig& config, int64_t parameters) {
  const int64_t needed = train::estimate_memory(config, parameters).total();
  const Machine machine = this_machine();
  if (needed <= machine.memory_bytes) return;
  fmt::print(stderr, "diffattn: this run needs about {}, but the {} {}. {}\n", mebibytes(needed),
             machine.memory_limited ? "control group of this process allows" : "machine has",
             mebibytes(machine.memory_bytes), kLessMemory);
}

void print_memory(const train::MemoryEstimate& memory) {
  const auto row = [](const char* name, int64_t bytes) {
    fmt::print("  {:<16}{:>9}\n", name, mebibytes(bytes));
  };
  fmt::print("memory       {:>14}  at the peak\n", mebibytes(memory.total()));
  // On a GPU the estimate leaves out the process itself.
  if (memory.runtime > 0) row("program and heap", memory.runtime);
  row("weights", memory.parameters);
  row("optimiser", memory.optimizer);
  row("activations", memory.activations);
  row("working memory", memory.working);
  row("gradients", memory.gradients);
  fmt::print("  The peak counts the larger of gradients and activations + working memory.\n");
}

/// Prints the resolved config, sizes and memory of a run without starting it.
int dry_run(const train::RunConfig& config, const train::TaskData& data, bool json) {
  const int64_t parameters = parameters_of(config, data);
  const train::MemoryEstimate memory = train::estimate_memory(config, parameters);
  const bool estimated = memory_is_estimated(config);
  if (may_warn_of_memory(config)) warn_of_memory(config, parameters);
  const int64_t per_step = config.train.batch_size * config.train.accumulate * config.train.seq_len;
  if (json) {
    const Json result{{"parameters", parameters},
                      {"steps", config.train.steps},
                      {"tokens_per_step", per_step},
                      {"train_tokens", data.train_tokens ? Json(*data.train_tokens) : Json()},
                      {"memory_bytes", estimated ? Json(memory.total()) : Json()},
                      {"config", config.to_toml()}};
    print_json(result);
    return 0;
  }
  fmt::print("{}\n", config.to_toml());
  fmt::print("parameters   {:>14}\n", parameters);
  fmt::print("steps        {:>14}  of {} tokens each\n", config.train.steps, per_step);
  if (data.train_tokens) {
    const auto epochs = static_cast<double>(per_step * config.train.steps) /
                        static_cast<double>(std::max<int64_t>(1, *data.train_tokens));
    fmt::print("data         {:>14}  tokens, read {:.2f} times\n", *data.train_tokens, epochs);
  } else {
    fmt::print("data         generated during the run\n");
  }
  if (estimated) {
    print_memory(memory);
  } else {
    fmt::print("memory       not estimated for this task\n");
  }
  return 0;
}

/// Reports training as a bar on a terminal, and as lines every train.log_every steps elsewhere.
class TrainingReporter {
 public:
  TrainingReporter(const train::RunConfig& config, int64_t done)
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
  ProgressBar bar_;
  double last_loss_ = std::nan(""), valid_loss_ = std::nan(""), valid_accuracy_ = std::nan("");
};

/// Prints how a run ended and returns the exit code.
int report_end(train::Outcome outcome, train::Run& run, const TrainingReporter& reporter,
               const TrainOptions& options, const std::string& folder) {
  const train::TrainingState& progress = run.trainer().state;
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
    print_json(result);
  } else if (outcome == train::Outcome::kDone) {
    fmt::print("model in {}\n", run.model_folder());
  }
  if (outcome == train::Outcome::kStopped) {
    fmt::print(stderr, "stopped at step {}; continue with: diffattn train --resume {}\n",
               progress.step, folder);
  }
  if (outcome == train::Outcome::kNonFinite) {
    fmt::print(
        stderr,
        "diffattn: loss or gradient was not finite {} times in a row. The last checkpoint is "
        "intact: lower train.learning_rate or train.clip_norm and --resume {}\n",
        progress.skipped_in_row, folder);
    return kNonFinite;
  }
  return 0;
}

/// Reads the config from the run file or from the resumed folder. Applies --set and --skip-bad.
train::RunConfig configured(const TrainOptions& options) {
  const std::string file =
      options.resume.empty() ? options.config : options.resume + "/config.toml";
  train::RunConfig config = load_run_config(file, options.set);
  if (!options.skip_bad) return config;
  config.data.skip_bad = true;
  if (!config.reads("data.skip_bad")) {
    fmt::print(stderr, "diffattn: --skip-bad has no effect: the task {} is generated\n",
               train::task_name(config.task));
  }
  return config;
}

/// With --resume, restores the newest checkpoint. Without it, throws train::ConfigError if the run
/// folder already has a checkpoint.
void resume_run(train::Run& run, train::BatchSource& source, const TrainOptions& options) {
  const bool found = run.resume(source);
  if (!options.resume.empty() && !found) {
    fmt::print(stderr, "{}: has no checkpoint yet; starting from the beginning\n", options.resume);
  }
  if (options.resume.empty() && found) {
    throw train::ConfigError(options.out +
                             ": expected a folder without a run, got one that holds a run; "
                             "--resume it or choose another --out");
  }
}

int run_train(const TrainOptions& options) {
  const std::string folder = options.resume.empty() ? options.out : options.resume;
  train::RunConfig config = configured(options);
  const auto task = train::open_task_data(config);
  const train::TaskData& data = *task;
  warn_of_skipped_lines(data.skipped_lines);
  warn_of_truncated_texts(data.truncated, fmt::format("train.seq_len = {}", config.train.seq_len));
  if (options.dry_run) return dry_run(config, data, options.json);
  if (const std::string problem = device_problem(config.train.device); !problem.empty()) {
    throw train::ConfigError("train.device: " + problem);
  }
  // Activation checkpointing saves memory only if freed blocks go back to Linux at once.
  config.train.activation_checkpointing ? return_freed_memory() : keep_freed_memory();
  std::vector<std::pair<std::string, std::string>> extra_files;
  if (data.tokenizer) extra_files.emplace_back(io::kTokenizerFile, data.tokenizer->to_json());
  if (may_warn_of_memory(config)) warn_of_memory(config, parameters_of(config, data));
  train::Run run(folder, config, train::new_task_model(config, data), extra_files);
  const auto train_source = data.train_batches();
  const auto valid_source = data.valid_batches();
  resume_run(run, *train_source, options);
  const int64_t done = run.trainer().state.step;
  if (done >= config.train.steps) {
    fmt::print(stderr, "{}: is at step {} of {}; to train longer, add --set train.steps=N\n",
               folder, done, config.train.steps);
  }
  TrainingReporter reporter(config, done);
  const train::StopSignal signal;
  train::RunEvents events;
  events.on_step = [&](const auto& report, const auto&) { reporter.step(report); };
  events.on_evaluation = [&](int64_t step, const auto& result, bool best) {
    reporter.evaluation(step, result, best);
  };
  events.stop = [&] { return signal.received() != 0; };
  const train::Outcome outcome = run.go(*train_source, valid_source.get(), events);
  return report_end(outcome, run, reporter, options, folder);
}

/// Runs the training and turns out-of-memory errors into an exit code of their own.
int run_train_guarded(const TrainOptions& options) {
  try {
    return run_train(options);
  } catch (const c10::Error& error) {
    // torch's CPU allocator throws a plain c10::Error.
    const std::string message = error.what_without_backtrace();
    const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                           message.find("can't allocate memory") != std::string::npos;
    if (!no_memory) throw;
    fmt::print(stderr, "diffattn: {}\n", message);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "diffattn: out of memory\n");
  }
  fmt::print(stderr, "diffattn: {} All files are intact.\n", kLessMemory);
  return kOutOfMemory;
}

}  // namespace

VerbAction add_train(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = app.add_subcommand("train", "Train a model from a run file");
  CLI::Option* config = verb->add_option("--config", options->config, "run file (TOML)");
  CLI::Option* out = verb->add_option("--out", options->out, "run folder to create");
  verb->add_option("--resume", options->resume, "run folder to continue")
      ->excludes(config)
      ->excludes(out);
  verb->add_option("--set", options->set, "override a key: train.steps=500")
      ->allow_extra_args(false);
  verb->add_flag("--skip-bad", options->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--dry-run", options->dry_run,
                 "print the config and the memory it needs, without training");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->footer("Example:\n  diffattn train --config run.toml --out runs/a --set train.steps=500");
  return [options] {
    if (options->resume.empty() && options->out.empty() && !options->dry_run) {
      throw train::ConfigError("train: expected --out or --resume, got neither");
    }
    return run_train_guarded(*options);
  };
}

}  // namespace diffattn::app
