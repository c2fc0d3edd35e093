// SPDX-License-Identifier: Apache-2.0
//
// diffattn train: trains a model from a run file into a run folder.

#include <fmt/core.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "apps/diffattn/machine/heap.h"
#include "apps/diffattn/machine/less_memory.h"
#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/terminal/data_warnings.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "apps/diffattn/train_page/run_page.h"
#include "apps/diffattn/training/progress.h"
#include "apps/diffattn/training/summary.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/run.h"
#include "diffattn/train/task_data.h"
#include "train/checkpoints.h"
#include "train/memory_estimate.h"
#include "train/parameter_count.h"

namespace diffattn::app {
namespace {

struct TrainOptions {
  std::string config, out, resume, from;
  std::vector<std::string> set;
  bool change_batch_size = false, dry_run = false, json = false, skip_bad = false;
};

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
}

/// Linux kills a process that runs out of memory without a message, so we warn first.
void warn_of_memory(const train::RunConfig& config, int64_t parameters) {
  if (config.train.device != "cpu") return;
  const train::MemoryEstimate estimate = train::estimate_memory(config, parameters);
  const int64_t needed = estimate.total(), fixed = estimate.parameters + estimate.optimizer;
  const Machine machine = this_machine();
  if (needed <= machine.memory_bytes) return;
  const bool model_fits = fixed <= machine.memory_bytes;
  print_note("diffattn: this run needs about {}, but the {} {}. {}\n", mebibytes(needed),
             machine.memory_limited ? "control group of this process allows" : "machine has",
             mebibytes(machine.memory_bytes),
             model_fits
                 ? less_memory("train")
                 : fmt::format("Weights and optimiser alone need {}: lower model.hidden_size "
                               "or model.num_hidden_layers.",
                               mebibytes(fixed)));
}

void print_memory(const train::MemoryEstimate& memory, int64_t processes) {
  const auto row = [](const char* name, int64_t bytes) {
    print_out("  {:<16}{:>9}\n", name, mebibytes(bytes));
  };
  const std::string each =
      processes == 1 ? "" : fmt::format(", in each of {} processes", processes);
  print_out("memory       {:>14}  at the peak{}\n", mebibytes(memory.total()), each);
  // On a GPU the estimate leaves out the process itself.
  if (memory.runtime > 0) row("program and heap", memory.runtime);
  row("weights", memory.parameters);
  row("optimiser", memory.optimizer);
  row("activations", memory.activations);
  row("working memory", memory.working);
  row("gradients", memory.gradients);
  print_out("  The peak counts the larger of gradients and activations + working memory.\n");
}

/// Prints the resolved config, sizes, memory and expected time of a run without starting it.
int dry_run(const train::RunConfig& config, const train::TaskData& data, bool json) {
  const int64_t parameters = train::parameter_count(config, data);
  const RunSummary summary = summarize_run(config, parameters);
  warn_of_memory(config, parameters);
  const int64_t per_step = summary.tokens_per_step;
  if (json) {
    const Json result{{"parameters", parameters},
                      {"steps", config.train.steps},
                      {"tokens_per_step", per_step},
                      {"train_tokens", data.train_tokens ? Json(*data.train_tokens) : Json()},
                      {"device", config.train.device},
                      {"threads", summary.threads},
                      {"processes", summary.processes},
                      {"memory_bytes", summary.memory.total()},
                      {"expected_seconds", summary.seconds},
                      {"config", config.to_toml()}};
    print_json(result);
    return 0;
  }
  print_out("{}\n", config.to_toml());
  print_out("parameters   {:>14}\n", parameters);
  print_out("steps        {:>14}  of {} tokens each\n", config.train.steps, per_step);
  if (data.train_tokens) {
    const auto epochs = static_cast<double>(per_step * config.train.steps) /
                        static_cast<double>(std::max<int64_t>(1, *data.train_tokens));
    print_out("data         {:>14}  tokens, read {:.2f} times\n", *data.train_tokens, epochs);
  } else {
    print_out("data         generated during the run\n");
  }
  print_out("device       {:>14}  with {}\n", config.train.device, thread_text(summary.threads));
  print_out("time         {:>14}  or so\n", duration_text(summary.seconds));
  print_memory(summary.memory, summary.processes);
  return 0;
}

/// Prints how a run ended and returns the exit code.
int report_end(train::Outcome outcome, train::Run& run, const TrainingProgress& reporter,
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
    print_out("model in {}\n", run.model_folder());
  }
  if (outcome == train::Outcome::kStopped) {
    print_note("stopped at step {}; continue with: diffattn train --resume {}\n", progress.step,
               folder);
  }
  if (outcome == train::Outcome::kNonFinite) {
    const auto intact = run.intact_checkpoint();
    print_note(
        "diffattn: loss or gradient was not finite {} times in a row. {}. Lower "
        "train.learning_rate or train.clip_norm and --resume {}\n",
        progress.skipped_in_row,
        intact ? "The checkpoint " + *intact + " is intact" : "No checkpoint passed a check",
        folder);
    return kNonFiniteLoss;
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
    print_note("diffattn: --skip-bad has no effect: the task {} is generated\n",
               train::task_name(config.task));
  }
  return config;
}

/// Throws Error if the processes would train different models or begin at different updates.
void check_same(const TrainOptions& options, const train::RunConfig& config,
                parallel::Collective& world) {
  parallel::check_same(world, "the run file with its --set", config.to_toml());
  parallel::check_same(world, "--resume, --from, --change-batch-size or --dry-run",
                       fmt::format("{} {} {} {}", options.resume.empty(), options.from,
                                   options.change_batch_size, options.dry_run));
}

/// Divides the rows of each batch among the processes of the job; train.context_parallel of them
/// share the tokens of their rows.
void share_rows(train::RunConfig& config, parallel::Collective& world) {
  const int64_t together = config.train.context_parallel;
  const int64_t groups = config.train.groups_of(world.size());
  if (config.train.batch_size % groups != 0) {
    throw train::ConfigError(
        fmt::format("train.batch_size: expected a multiple of the {} {}, got {}", groups,
                    together == 1 ? "processes" : "groups of processes", config.train.batch_size));
  }
  config.job = {.rank = world.rank() / together, .processes = groups};
}

/// Returns what --from and --change-batch-size ask for.
train::ResumeOptions resume_options(const TrainOptions& options) {
  train::ResumeOptions result{.from = {}, .change_batch_size = options.change_batch_size};
  if (options.from.empty()) return result;
  result.from = train::checkpoint_step(options.from);
  if (!result.from) {
    throw train::ConfigError(
        fmt::format("--from: expected the name of a checkpoint, step-N, got '{}'", options.from));
  }
  return result;
}

/// With --resume, restores a checkpoint. Without it, throws train::ConfigError if the run folder
/// already has a checkpoint.
void resume_run(train::Run& run, train::BatchSource& source, const TrainOptions& options) {
  const bool speaks = parallel::world()->rank() == 0;
  if (options.resume.empty()) {
    if (!run.has_checkpoint()) return;
    throw train::ConfigError(options.out +
                             ": expected a folder without a run, got one that holds a run; "
                             "--resume it or choose another --out");
  }
  const bool resumed = run.resume(source, resume_options(options));
  if (!speaks) return;
  if (resumed) {
    print_note("{}: continues after step {}\n", options.resume, run.trainer().state.step);
  } else {
    print_note("{}: has no checkpoint yet; starting from the beginning\n", options.resume);
  }
}

/// Trains on a rank that prints nothing. Rank 0 prints for all.
int run_silently(train::Run& run, const train::RunConfig& config, train::BatchSource& source,
                 train::BatchSource* valid) {
  const StopSignal signal;
  train::RunEvents events;
  events.stop = [&] { return signal.received(); };
  const train::Outcome outcome = run.go(source, valid, events);
  // Rank 0 continues the prompts at the end, for which it needs the weights of all.
  if (!config.train.sample_prompts.empty()) train::Trainer::WholeWeights{run.trainer()};
  return outcome == train::Outcome::kNonFinite ? kNonFiniteLoss : 0;
}

int run_train(const TrainOptions& options) {
  const std::string folder = options.resume.empty() ? options.out : options.resume;
  train::RunConfig config = configured(options);
  const auto world = parallel::world();
  const bool speaks = world->rank() == 0;
  check_same(options, config, *world);
  share_rows(config, *world);
  const auto task = train::open_task_data(config);
  const train::TaskData& data = *task;
  if (speaks) {
    warn_of_skipped_lines(data.skipped_lines);
    warn_of_skipped_files(data.skipped_files);
    warn_of_truncated_texts(data.truncated,
                            fmt::format("train.seq_len = {}", config.train.seq_len));
  }
  if (const std::string problem = device_problem(config.train.device); !problem.empty()) {
    throw train::ConfigError("train.device: " + problem);
  }
  parallel::check_device(*world, torch::Device(config.train.device));
  if (options.dry_run) return speaks ? dry_run(config, data, options.json) : 0;
  // Activation checkpointing and sharding save memory only if freed blocks go back to Linux at
  // once.
  const bool sharded = world->size() > 1 && config.train.shard != "none";
  config.train.activation_checkpointing || sharded ? return_freed_memory() : keep_freed_memory();
  std::vector<std::pair<std::string, std::string>> extra_files;
  if (data.tokenizer) extra_files.emplace_back(io::kTokenizerFile, data.tokenizer->to_json());
  const int64_t parameters = train::parameter_count(config, data);
  if (speaks) warn_of_memory(config, parameters);
  train::Run run(folder, config, train::new_task_model(config, data), extra_files, world);
  const auto train_source = data.train_batches();
  const auto valid_source = data.valid_batches();
  resume_run(run, *train_source, options);
  const int64_t done = run.trainer().state.step;
  if (!speaks) return run_silently(run, config, *train_source, valid_source.get());
  if (done >= config.train.steps) {
    print_note("{}: is at step {} of {}; to train longer, add --set train.steps=N\n", folder, done,
               config.train.steps);
  } else {
    print_summary(config, data, summarize_run(config, parameters), done);
  }
  TrainingProgress reporter(config, done);
  const StopSignal signal;
  RunPage page(folder, config, data, run);
  train::RunEvents events;
  events.on_step = [&](const auto& report, const auto&) { reporter.step(report); };
  events.on_evaluation = [&](int64_t step, const auto& result, bool best) {
    reporter.evaluation(step, result, best);
    page.refresh(step);
  };
  events.stop = [&] {
    if (!signal.received()) return false;
    reporter.stopping(run.trainer().state.step);
    return true;
  };
  const train::Outcome outcome = run.go(*train_source, valid_source.get(), events);
  {
    std::optional<train::Trainer::WholeWeights> weights;
    if (!config.train.sample_prompts.empty()) weights.emplace(run.trainer());
    page.finish();
  }
  return report_end(outcome, run, reporter, options, folder);
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
  verb->add_option("--from", options->from,
                   "checkpoint to continue from: step-N (default: the newest)")
      ->needs("--resume");
  verb->add_flag("--change-batch-size", options->change_batch_size,
                 "continue with another number of rows for each update")
      ->needs("--resume");
  verb->add_option("--set", options->set, "override a key: train.steps=500")
      ->allow_extra_args(false);
  verb->add_flag("--skip-bad", options->skip_bad, "skip and count bad lines of JSONL data");
  verb->add_flag("--dry-run", options->dry_run,
                 "print the config and the memory it needs, without training");
  add_threads_option(*verb);
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->footer("Example:\n  diffattn train --config run.toml --out runs/a --set train.steps=500");
  return [options] {
    if (options->resume.empty() && options->out.empty() && !options->dry_run) {
      throw train::ConfigError("train: expected --out or --resume, got neither");
    }
    return run_train(*options);
  };
}

}  // namespace diffattn::app
