// SPDX-License-Identifier: Apache-2.0
//
// diffattn compare: trains DIFF and its variants beside a Transformer of equal size.

#include "compare/compare.h"

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cerrno>
#include <filesystem>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/verbs.h"
#include "compare/recipes.h"
#include "compare/results.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "train/stop_signal.h"

namespace diffattn::app {
namespace {

struct CompareArguments {
  std::string task, config, out;
  std::vector<std::string> set, models = {"diffllama", "transformer"};
  std::vector<int64_t> seeds;  // empty: the seed of the config
  std::vector<double> learning_rates;
  int64_t jobs = 0, samples = 0, threads = 0;  // 0: the default
  bool json = false, keep_models = false, as_given = false;
};

const std::vector<std::string> kIntroduction{
    "A differential head computes two softmax maps and subtracts one from the other, so that noise "
    "in both maps cancels.",
    "A head of the Transformer has one map, which always spreads some of its weight over noise.",
    "All models here saw the same sequences in the same order. The table shows their sizes.",
};

train::RunConfig base_config(const CompareArguments& arguments) {
  if (!arguments.config.empty()) {
    std::vector<std::string> overrides = arguments.set;
    if (!arguments.task.empty()) overrides.insert(overrides.begin(), "task=" + arguments.task);
    return load_run_config(arguments.config, overrides);
  }
  train::RunConfig config;
  config.set_all(compare::recipe(arguments.task.empty() ? "needle" : arguments.task));
  set_overrides(config, arguments.set);
  return config;
}

/// Returns commands to run next, each with its purpose as a comment.
std::vector<std::string> next_steps(const CompareArguments& arguments, int64_t seed) {
  const std::string task = arguments.task.empty() ? "needle" : arguments.task;
  const std::string program = program_invocation_name;
  std::string again = program + " compare";
  if (!arguments.config.empty()) again += " --config " + arguments.config;
  if (arguments.config.empty() || !arguments.task.empty()) again += " --task " + task;
  for (const std::string& setting : arguments.set) again += " --set " + setting;
  if (!arguments.learning_rates.empty()) {
    again += fmt::format(" --learning-rates {}", fmt::join(arguments.learning_rates, ","));
  }
  if (arguments.as_given) again += " --as-given";
  const std::string models = arguments.models == CompareArguments().models
                                 ? ""
                                 : fmt::format(" --models {}", fmt::join(arguments.models, ","));
  const bool examples = std::filesystem::exists("examples/language.toml");
  std::vector<std::string> steps{
      fmt::format("{}{} --seeds {},{},{},{},{} --out runs/seeds    # is it luck?", again, models,
                  seed, seed + 1, seed + 2, seed + 3, seed + 4),
      again +
          " --models transformer,diffllama,diffllama:head_norm=false --out runs/ablation    # "
          "which part does it?",
      program + " train " +
          (examples ? "--config examples/language.toml" : "--set data.train=TEXT_FILE") +
          " --out runs/language    # a model of your own text"};
  if (arguments.keep_models && arguments.config.empty() && task == "needle" &&
      arguments.models.front() == "diffllama") {
    steps[1] = fmt::format(
        "{} analyze --model {}/models/diffllama-seed{}/model --task needle --out {}/maps.html    # "
        "every map of every head",
        program, arguments.out, seed, arguments.out);
  }
  return steps;
}

/// Throws io::Error before hours of training if results cannot be written to the folder.
void check_writable_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::Error(folder, "could not create the folder: " + error.message());
  const io::AtomicFile probe(folder + "/results.json");
}

compare::CompareOptions compare_options(const CompareArguments& arguments,
                                        const train::RunConfig& base) {
  if (const std::string problem = device_problem(base.train.device); !problem.empty()) {
    throw train::ConfigError("train.device: " + problem);
  }
  if (arguments.samples > 0 && base.task != train::Task::kNeedle) {
    throw train::ConfigError("--samples: expected task needle, got " + train::task_name(base.task));
  }
  compare::CompareOptions options;
  for (const std::string& model : arguments.models) {
    options.models.push_back(compare::contender(model, base));
  }
  options.seeds = arguments.seeds.empty() ? std::vector{base.seed} : arguments.seeds;
  options.jobs = arguments.jobs;
  options.learning_rates = arguments.learning_rates;
  if (arguments.samples > 0) options.samples = arguments.samples;
  options.match_parameters = !arguments.as_given;
  if (arguments.keep_models && !arguments.out.empty()) {
    options.models_folder = arguments.out + "/models";
  }
  return options;
}

/// Trains and measures, with a bar on a terminal and lines elsewhere.
compare::Comparison run_comparison(const compare::CompareOptions& options) {
  ProgressBar bar("compare", compare::total_steps(options));
  const train::StopSignal signal;
  compare::CompareEvents events;
  events.on_step = [&](const std::string& text) { bar.step(text); };
  events.on_message = [&](const std::string& line) {
    bar.clear();
    fmt::print(stderr, "{}\n", line);
  };
  events.on_point = [&](const std::string& run, const compare::CurvePoint& point) {
    if (bar.shown()) return;
    fmt::print(stderr, "{} step {}: loss {:.4f}, validation loss {:.4f}, accuracy {:.3f}\n", run,
               point.step, point.loss, point.valid_loss, point.valid_accuracy);
  };
  events.stop = [&] { return signal.received() != 0; };
  return compare::compare(options, events);
}

int run_compare(const CompareArguments& arguments) {
  if (arguments.threads > 0) at::set_num_threads(static_cast<int>(arguments.threads));
  const compare::CompareOptions options = compare_options(arguments, base_config(arguments));
  if (!arguments.out.empty()) check_writable_folder(arguments.out);
  const compare::Comparison comparison = run_comparison(options);
  const auto next = next_steps(arguments, options.seeds.front());
  if (!arguments.out.empty()) {
    compare::write_results(arguments.out, comparison, kIntroduction, next);
  }
  if (arguments.json) {
    fmt::print("{}", compare::to_json(comparison));
    return 0;
  }
  fmt::print("{}\n", compare::to_text(comparison));
  for (const std::string& sentence : compare::verdicts(comparison)) fmt::print("{}\n", sentence);
  if (!arguments.out.empty()) {
    fmt::print("\nreport in {}/report.html\nnext:\n", arguments.out);
    for (const std::string& step : next) fmt::print("  {}\n", step);
  }
  return 0;
}

}  // namespace

VerbAction add_compare(CLI::App& app) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* verb = app.add_subcommand("compare", "Train DIFF beside a Transformer of equal size");
  verb->add_option("--task", arguments->task,
                   "needle, recall, classify or summarize; lm with --config (default needle)");
  verb->add_option("--config", arguments->config, "run file (TOML) instead of the task's recipe");
  verb->add_option("--models", arguments->models,
                   "presets, each with its own keys: diffllama:head_norm=false (default "
                   "diffllama,transformer)")
      ->delimiter(',');
  verb->add_option("--seeds", arguments->seeds,
                   "seeds; every model trains once with each (default: the seed of the config, 11 "
                   "for a recipe)")
      ->delimiter(',')
      ->check(integer_from(0));
  verb->add_option("--learning-rates", arguments->learning_rates,
                   "learning rates; every model tries them with another seed and takes its best")
      ->delimiter(',');
  verb->add_option("--set", arguments->set, "override a key: train.steps=20")
      ->allow_extra_args(false);
  CLI::Option* out =
      verb->add_option("--out", arguments->out, "folder for report.html, results.json and CSV");
  verb->add_option("--samples", arguments->samples,
                   "task needle: sequences per number of needles and depth (default 64)")
      ->check(integer_in(1, int64_t{1} << 20));
  verb->add_option("--jobs", arguments->jobs, "runs that train at a time (default: one per thread)")
      ->check(integer_in(1, 1024));
  verb->add_option("--threads", arguments->threads, "threads in total (default: all cores)")
      ->check(integer_in(1, 1024));
  verb->add_flag("--keep-models", arguments->keep_models, "save the trained models in OUT/models")
      ->needs(out);
  verb->add_flag("--as-given", arguments->as_given,
                 "do not change widths to make parameter counts equal");
  verb->add_flag("--json", arguments->json, "print one JSON object");
  verb->footer("Example:\n  diffattn compare --task needle --seeds 11,12,13 --out runs/c");
  return [arguments] { return run_compare(*arguments); };
}

}  // namespace diffattn::app
