// SPDX-License-Identifier: Apache-2.0
//
// diffattn analyze: shows the attention of a model on a text as a page, as pictures and as numbers.

#include <fmt/core.h>

#include "apps/diffattn/analyze/analysis_output.h"
#include "apps/diffattn/analyze/run_analysis.h"
#include "apps/diffattn/options/machine_options.h"
#include "apps/diffattn/options/model_option.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::app {
namespace {

constexpr int64_t kMostPanelPixels = 720;

struct AnalyzeOptions {
  std::string model, out, png, svg, csv, map = "all", theme = "light";
  std::vector<std::string> compare;
  AnalysisRequest request;
  double range = 0;
  bool linear = false, ascii = false, json = false;
};

/// Throws io::Error before minutes of work if a file cannot be written.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  if (path == "-") {
    throw io::Error(path, "expected a file; use --json or --ascii for standard output");
  }
  io::AtomicFile probe(path);
}

void write_pictures(const AnalyzeOptions& options, const AnalysisResult& result) {
  const analysis::Picture picture = picture_of_result(result, options.map);
  analysis::PictureStyle style;
  style.theme = options.theme == "dark" ? analysis::PictureStyle::Theme::kDark
                                        : analysis::PictureStyle::Theme::kLight;
  style.range = options.range;
  style.root = !options.linear;
  style.panel_pixels = kMostPanelPixels;
  if (!options.png.empty()) io::write_text(options.png, analysis::to_png(picture, style));
  if (!options.svg.empty()) io::write_text(options.svg, analysis::to_svg(picture, style));
  if (options.ascii) print_picture(picture, style);
}

int run_analyze(const AnalyzeOptions& options) {
  for (const std::string& path : {options.out, options.png, options.svg, options.csv}) {
    check_writable(path);
  }
  AnalysisRequest request = options.request;
  request.folders = {options.model};
  request.folders.insert(request.folders.end(), options.compare.begin(), options.compare.end());
  const AnalysisResult result = run_analysis(request);
  if (!options.out.empty()) write_page(options.out, result);
  if (!options.csv.empty()) write_statistics(options.csv, result);
  if (options.ascii || !options.png.empty() || !options.svg.empty()) {
    write_pictures(options, result);
  }
  if (options.json) {
    print_analysis_json(result, request.layer && request.head);
  } else if (!options.ascii) {
    print_statistics(result);
    if (!options.out.empty()) print_out("page in {}\n", options.out);
  }
  return 0;
}

/// Throws a CLI11 error for options that need one of several others: CLI11's needs() means all.
void check_combinations(const CLI::App& verb) {
  const auto given = [&](const char* name) { return verb.get_option(name)->count() > 0; };
  check_one_of(verb, {"--text", "--prompt-ids", "--input", "--task"}, false);
  const bool text = given("--text") || given("--input");
  if (!text && !given("--prompt-ids") && !given("--task") && !given("--data")) {
    throw CLI::RequiredError(
        "analyze: expected one of --text, --prompt-ids, --input, --task and --data, got none",
        CLI::ExitCodes::RequiredError);
  }
  if (given("--summary") && !text) throw CLI::RequiresError("--summary", "--text or --input");
  const bool picture = given("--png") || given("--svg") || given("--ascii");
  for (const char* name : {"--map", "--theme", "--range", "--linear", "--part"}) {
    if (given(name) && !picture) throw CLI::RequiresError(name, "--png, --svg or --ascii");
  }
  for (const std::string& setting : verb.get_option("--set")->results()) {
    const std::string task = verb.get_option("--task")->as<std::string>();
    if (setting.starts_with(task + ".")) continue;
    throw CLI::ValidationError("--set",
                               fmt::format("expected {}.KEY=VALUE, got '{}'", task, setting));
  }
}

void add_text_options(CLI::App& verb, TextOptions& text) {
  verb.add_option("--text", text.text, "text to look at");
  verb.add_option("--prompt-ids", text.prompt_ids, "token ids to look at: 5,7,9")->delimiter(',');
  verb.add_option("--input", text.input,
                  "file or pipe with the text to look at, - for standard input");
  verb.add_flag("--truncate", text.truncate,
                "look at the beginning of a text that is longer than the model reads");
  CLI::Option* task = verb.add_option("--task", text.task, "example of a generated task to look at")
                          ->check(CLI::IsMember({"needle", "recall", "classify", "summarize"}));
  CLI::Option* data = verb.add_option(
      "--data", text.data, "data set for the statistics: text file, folder, JSONL or token file");
  verb.add_option("--seq-len", text.seq_len,
                  "tokens of --data at a time (default: the most that the model reads)")
      ->check(integer_in(1, int64_t{1} << 24))
      ->needs(data);
  verb.add_option("--summary", text.summary,
                  "text for the decoder of an encoder-decoder, with --text or --input (default: "
                  "the summary that it writes)");
  verb.add_option("--set", text.settings,
                  "key of the task, over the config of the run: needle.length=256")
      ->allow_extra_args(false)
      ->needs(task);
  verb.add_option("--examples", text.examples,
                  "examples of the task for the statistics (default 8)")
      ->check(integer_in(1, int64_t{1} << 24))
      ->needs(task)
      ->excludes(data);
  verb.add_option("--seed", text.seed, "seed of the task's examples (default 0)")
      ->check(integer_from(0))
      ->needs(task);
}

void add_output_options(CLI::App& verb, AnalyzeOptions& options) {
  verb.add_option("--out", options.out, "HTML page to write, with every map");
  verb.add_option("--png", options.png, "picture of one head to write, as PNG");
  verb.add_option("--svg", options.svg, "picture of one head to write, as SVG");
  verb.add_option("--csv", options.csv, "statistics per layer and head to write, as CSV");
  CLI::Option* ascii = verb.add_flag("--ascii", options.ascii, "print the picture as text");
  verb.add_flag("--json", options.json,
                "print one JSON object; with --layer and --head it has the maps of that head")
      ->excludes(ascii);
  verb.add_option("--map", options.map, "maps in pictures (default all)")
      ->check(CLI::IsMember({"all", "1", "2", "difference"}));
  verb.add_option("--theme", options.theme, "theme of pictures (default light)")
      ->check(CLI::IsMember({"light", "dark"}));
  verb.add_option("--range", options.range,
                  "weight with the strongest colour (default: the largest weight)")
      ->check(positive());
  verb.add_flag("--linear", options.linear,
                "scale colours by the weight instead of its square root");
}

}  // namespace

VerbAction add_analyze(CLI::App& app) {
  auto options = std::make_shared<AnalyzeOptions>();
  CLI::App* verb = app.add_subcommand("analyze", "Show the attention of a model on a text");
  add_model_option(*verb, options->model, "model");
  take_model_folders(
      *verb->add_option("--compare", options->compare, "another model to show beside it")
           ->allow_extra_args(false));
  add_text_options(*verb, options->request.text);
  add_output_options(*verb, *options);
  verb->callback([verb] { check_combinations(*verb); });
  verb->add_option("--layer", options->request.layer,
                   "layer of the head in page and pictures (default: the strongest head)");
  verb->add_option("--head", options->request.head, "number of that head in its layer");
  verb->add_option("--threshold", options->request.threshold,
                   "weights below it count as zero in the sparsity (default 0.001)")
      ->check(positive());
  verb->add_option("--part", options->request.part,
                   "part of the model in pictures: encoder, decoder, cross-attention or \"path 0\" "
                   "(default: the first)");
  verb->add_option("--dtype", options->request.dtype, "type of the weights (default float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(*verb, options->request.device);
  add_threads_option(*verb);
  verb->footer(
      "Give one of --text, --prompt-ids, --input and --task, or --data.\n\n"
      "Example:\n  diffattn analyze --model runs/a --text \"Once upon a time\" \\\n"
      "    --out report.html");
  return [options] { return run_analyze(*options); };
}

}  // namespace diffattn::app
