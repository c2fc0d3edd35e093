// SPDX-License-Identifier: Apache-2.0
//
// diffattn compare: trains DIFF and its variants beside a Transformer of equal size.

#include "compare/compare.h"
#include "apps/diffattn/terminal/stop_signal.h"

#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cerrno>
#include <filesystem>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/options/run_file.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/verbs.h"
#include "compare/recipes.h"
#include "compare/results.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/parallel/collective.h"

namespace diffattn::app {
namespace {

struct CompareArguments {
  std::string task, config, out, test;
  std::vector<std::string> set, models = {"diffllama", "transformer"};
  std::vector<int64_t> seeds;  // empty: the seed of the config
  std::vector<double> learning_rates;
  int64_t jobs = 0, samples = 0, threads = 0, rate_steps = 0;  // 0: the default
  bool json = false, keep_models = false, as_given = false;
};

/// Returns what the models had to do.
std::string task_in_words(const train::RunConfig& config) {
  const bool generated = config.data.train.empty();
  switch (config.task) {
    case train::Task::kLanguageModel: return "The models predict the next token of a text.";
    case train::Task::kNeedle:
      return fmt::format(
          "Needles, each a key and its value, lie among noise in a text of {} tokens. A question "
          "names a key; the answer is its value.",
          config.needle.length);
    case train::Task::kRecall:
      return "A list of pairs gives a value to each key. A question names a key; the answer is its "
             "value.";
    case train::Task::kClassify:
      return generated ? "A text of noise has a few words of its class and fewer of other classes. "
                         "The models name the class."
                       : "The models name the class of a text.";
    case train::Task::kSummarize: break;
  }
  return generated
             ? fmt::format(
                   "A document has {} sentences, and each begins with a cue. Half of the cues "
                   "mark the {} sentences that the summary repeats; the rest is noise.",
                   config.summarize.select.sentences, config.summarize.select.selected)
             : "The models write the summary of a document.";
}

std::vector<std::string> introduction(const train::RunConfig& config) {
  return {
      task_in_words(config),
      "A differential head computes two softmax maps and subtracts λ times the second from the "
      "first. λ is learnt: where it is positive, what both maps look at cancels; where it is "
      "negative, the maps add up. A head of the Transformer has one softmax map.",
      "All models saw the same examples in the same order. The table of models has their sizes.",
      "The verdict holds after this many steps at these sizes. With more steps the model that "
      "learns more slowly may catch up."};
}

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

/// Returns the command line of this comparison, without models, seeds and --out.
std::string same_comparison(const CompareArguments& arguments) {
  std::string again = std::string(program_invocation_name) + " compare";
  if (!arguments.config.empty()) again += " --config " + arguments.config;
  if (arguments.config.empty() || !arguments.task.empty()) {
    again += " --task " + (arguments.task.empty() ? "needle" : arguments.task);
  }
  for (const std::string& setting : arguments.set) again += " --set " + setting;
  if (!arguments.learning_rates.empty()) {
    again += fmt::format(" --learning-rates {}", fmt::join(arguments.learning_rates, ","));
    if (arguments.rate_steps > 0) again += fmt::format(" --rate-steps {}", arguments.rate_steps);
  }
  if (!arguments.test.empty()) again += " --test " + arguments.test;
  return again + (arguments.as_given ? " --as-given" : "");
}

/// Returns commands to run next.
std::vector<analysis::NextCommand> next_steps(const CompareArguments& arguments,
                                              const compare::CompareOptions& options) {
  const std::string program = program_invocation_name, again = same_comparison(arguments);
  const std::string models = arguments.models == CompareArguments().models
                                 ? ""
                                 : fmt::format(" --models {}", fmt::join(arguments.models, ","));
  std::vector<int64_t> more;
  for (int64_t seed = options.seeds.back() + 1; more.size() < 5; ++seed) more.push_back(seed);
  const bool examples = std::filesystem::exists("examples/language.toml");
  std::vector<analysis::NextCommand> steps{
      {"is it luck?",
       fmt::format("{}{} --seeds {} --out runs/seeds", again, models, fmt::join(more, ","))},
      {"which part does it?",
       again + " --models transformer,diffllama,diffllama:head_norm=false --out runs/ablation"},
      {"a model of your own text",
       program + " train " +
           (examples ? "--config examples/language.toml" : "--set data.train=TEXT_FILE") +
           " --out runs/language"}};
  const train::RunConfig& config = options.models.front().config;
  if (!options.models_folder.empty() && config.data.train.empty() &&
      arguments.models.front() == "diffllama") {
    steps[1] = {"every map of every head",
                fmt::format("{} analyze --model {}/diffllama-seed{}/model --task {} --out "
                            "{}/maps.html",
                            program, options.models_folder, options.seeds.front(),
                            train::task_name(config.task), arguments.out)};
  }
  return steps;
}

compare::Environment environment_of(const std::string& device) {
  const Machine machine = this_machine();
  compare::Environment result;
  result.cpu = machine.cpu;
  if (device != "cpu") result.gpu = gpu_names(machine);
  result.threads = at::get_num_threads();
  result.diffattn = DIFFATTN_VERSION;
  result.torch = DIFFATTN_TORCH_VERSION;
  return result;
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
  options.rate_steps = arguments.rate_steps;
  if (arguments.samples > 0) options.samples = arguments.samples;
  options.match_parameters = !arguments.as_given;
  options.test = arguments.test;
  options.environment = environment_of(base.train.device);
  if (!arguments.out.empty()) options.runs_folder = arguments.out + "/runs";
  if (arguments.keep_models && !arguments.out.empty()) {
    options.models_folder = arguments.out + "/models";
  }
  return options;
}

/// Throws Error if the processes of a job were asked for different comparisons.
void check_same(parallel::Collective& world, const compare::CompareOptions& options) {
  std::string text = fmt::format("{} {} {} {} {} {}\n", fmt::join(options.seeds, ","),
                                 fmt::join(options.learning_rates, ","), options.rate_steps,
                                 options.samples, options.match_parameters, options.test);
  for (const compare::Contender& model : options.models) {
    text += model.name + "\n" + model.config.to_toml();
  }
  parallel::check_same(world, "the arguments of compare", text);
}

/// Trains and measures on a rank that prints nothing. Rank 0 prints for all.
compare::Comparison run_silently(const compare::CompareOptions& options,
                                 const std::shared_ptr<parallel::Collective>& world) {
  const StopSignal signal;
  compare::CompareEvents events;
  events.stop = [&] { return signal.received(); };
  return compare::compare(options, events, world);
}

/// Trains and measures, with a bar on a terminal and lines elsewhere.
compare::Comparison run_comparison(const compare::CompareOptions& options,
                                   const std::shared_ptr<parallel::Collective>& world) {
  ProgressBar bar("compare", compare::total_steps(options, *world));
  const StopSignal signal;
  compare::CompareEvents events;
  events.on_step = [&](const std::string& text) { bar.step(text); };
  events.on_skip = [&](int64_t updates) { bar.skip(updates); };
  events.on_message = [&](const std::string& line) {
    bar.clear();
    print_note("{}\n", line);
  };
  events.on_point = [&](const std::string& run, const compare::CurvePoint& point) {
    if (bar.shown()) return;
    print_note("{} step {}: loss {:.4f}, validation loss {:.4f}, accuracy {:.3f}\n", run,
               point.step, point.loss, point.valid_loss, point.valid_accuracy);
  };
  events.stop = [&] { return signal.received(); };
  return compare::compare(options, events, world);
}

int run_compare(const CompareArguments& arguments) {
  if (arguments.threads > 0) at::set_num_threads(static_cast<int>(arguments.threads));
  const compare::CompareOptions options = compare_options(arguments, base_config(arguments));
  const auto world = parallel::world();
  check_same(*world, options);
  if (world->rank() > 0) return run_silently(options, world), 0;
  if (!arguments.out.empty()) check_writable_folder(arguments.out);
  const compare::Comparison comparison = run_comparison(options, world);
  const auto next = next_steps(arguments, options);
  if (!arguments.out.empty()) {
    compare::write_results(arguments.out, comparison,
                           introduction(comparison.models.front().config), next);
  }
  if (arguments.json) {
    print_json_text(compare::to_json(comparison));
    return 0;
  }
  print_out("{}\n", compare::to_text(comparison));
  for (const std::string& sentence : compare::verdicts(comparison)) print_out("{}\n", sentence);
  if (!arguments.out.empty()) {
    const std::string page = arguments.out + "/report.html";
    print_out("\nreport in {} ({:.1f} MB)\nnext:\n", page,
              static_cast<double>(std::filesystem::file_size(page)) / 1e6);
    for (const auto& [purpose, command] : next) print_out("  {}    # {}\n", command, purpose);
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
  CLI::Option* rates =
      verb->add_option(
              "--learning-rates", arguments->learning_rates,
              "learning rates; every model tries them with another seed and takes its best")
          ->delimiter(',');
  verb->add_option("--rate-steps", arguments->rate_steps,
                   "updates for each of these rates (default: train.steps)")
      ->needs(rates)
      ->check(integer_from(1));
  verb->add_option("--set", arguments->set, "override a key: train.steps=20")
      ->allow_extra_args(false);
  CLI::Option* out =
      verb->add_option("--out", arguments->out, "folder for report.html, results.json and CSV");
  verb->add_option("--test", arguments->test,
                   "task lm: text to measure after training, or a folder with a file per kind");
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
