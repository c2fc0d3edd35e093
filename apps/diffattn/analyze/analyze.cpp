// SPDX-License-Identifier: Apache-2.0
//
// diffattn analyze: what the attention of a model does on a text, as a page, as pictures and as
// numbers.

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/diffattn/analyze/parts.h"
#include "diffattn/analysis/attention_report.h"
#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/progress.h"
#include "apps/diffattn/terminal/terminal.h"
#include "apps/diffattn/terminal/text_table.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

using analysis::HeadIndex;
using analysis::ModelAttention;
using Json = nlohmann::ordered_json;

/// Entries of maps go into JSON up to this many tokens.
constexpr int64_t kMostTokensInJson = 512;
constexpr int64_t kMostPanelPixels = 720;

struct AnalyzeOptions {
  std::string model, out, png, svg, csv, map = "all", theme = "light";
  std::vector<std::string> compare;
  AnalyzeRequest request;
  double range = 0;
  bool linear = false, ascii = false, json = false;
};

/// A file that cannot be written should be known before minutes of work.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  if (path == "-")
    throw io::Error(path, "expected a file; standard output takes --json or --ascii");
  io::AtomicFile probe(path);
}

analysis::Picture picture_in(const Analysis& result, const std::string& map) {
  const std::vector<std::pair<std::string, analysis::Planes>> kinds = {
      {"all", analysis::Planes::kAll},
      {"1", analysis::Planes::kMap1},
      {"2", analysis::Planes::kMap2},
      {"difference", analysis::Planes::kDifference}};
  analysis::Planes planes = analysis::Planes::kAll;
  for (const auto& [name, kind] : kinds) planes = name == map ? kind : planes;
  std::vector<ModelAttention> models;
  std::vector<HeadIndex> heads;
  std::string which;
  for (const std::size_t i : result.pictured) {
    models.push_back(result.models[i]);
    heads.push_back(result.heads[i]);
    const std::string name = result.pictured.size() > 1 ? result.models[i].name + ": " : "";
    which += fmt::format("{}{}layer {}, head {}", which.empty() ? "" : "; ", name,
                         heads.back().layer, heads.back().head);
  }
  analysis::Picture picture = analysis::picture_of(models, heads, planes);
  picture.title = result.pictured.size() > 1 ? which : result.title + ", " + which;
  return picture;
}

/// How this terminal can be drawn on.
void print_ascii(const analysis::Picture& picture, analysis::PictureStyle style) {
  const bool colours = is_terminal(STDOUT_FILENO) && variable("NO_COLOR").empty();
  fmt::print("{}", analysis::to_ascii(
                       picture,
                       colours ? analysis::TerminalColours::k256 : analysis::TerminalColours::kNone,
                       terminal_columns(STDOUT_FILENO).value_or(100), style));
}

void write_page(const AnalyzeOptions& options, const Analysis& result) {
  analysis::Report report;
  report.title = result.title;
  report.subtitle = result.subtitle;
  analysis::ReportOptions how;
  how.shown = result.heads;
  int64_t heads = 0;
  for (const ModelAttention& model : result.models) heads += model.layers() * model.heads();
  Progress progress("maps", heads);
  how.progress = [&](int64_t, int64_t) { progress.step(""); };
  analysis::write_report(options.out, report, result.models, how);
}

Json numbers_of(const analysis::LambdaLayer& layer) {
  Json heads = Json::array();
  for (const analysis::LambdaValue& value : layer.heads) {
    heads.push_back({{"mean", value.mean}, {"min", value.min}, {"max", value.max}});
  }
  return {
      {"layer", layer.layer}, {"init", layer.init ? Json(*layer.init) : Json()}, {"heads", heads}};
}

/// Rows of one map as lists.
Json grid_json(const std::vector<float>& values, int64_t columns) {
  Json rows = Json::array();
  for (auto row = values.begin(); row != values.end(); row += columns) {
    rows.push_back(std::vector<float>(row, row + columns));
  }
  return rows;
}

Json maps_json(const ModelAttention& model, const HeadIndex& index) {
  const analysis::HeadMaps maps = analysis::head_maps(model.calls, index.layer, index.head);
  const int64_t columns = model.sequence.column_count();
  Json out{{"layer", index.layer}, {"head", index.head}, {"p1", grid_json(maps.p1, columns)}};
  if (maps.p2.empty()) return out;
  out["p2"] = grid_json(maps.p2, columns);
  out["lambda"] = maps.lambda;
  out["difference"] = grid_json(analysis::difference_of(maps, columns), columns);
  return out;
}

Json json_of_model(const ModelAttention& model, const HeadIndex& shown, bool maps) {
  Json lambda = Json::array();
  for (const analysis::LambdaLayer& layer : model.lambda) lambda.push_back(numbers_of(layer));
  Json out{{"name", model.name},
           {"description", model.description},
           {"layers", model.layers()},
           {"heads", model.heads()},
           {"shown", {{"layer", shown.layer}, {"head", shown.head}}},
           {"queries", model.sequence.rows}};
  if (!model.sequence.columns.empty()) out["keys"] = model.sequence.columns;
  out["regions"] = Json::array();
  for (const analysis::Region& region : model.sequence.regions) {
    out["regions"].push_back({{"name", region.name},
                              {"kind", region.kind},
                              {"begin", region.begin},
                              {"end", region.end}});
  }
  out["lambda"] = lambda;
  out["statistics"] = Json::parse(analysis::to_json(model.statistics));
  if (maps) out["maps"] = maps_json(model, shown);
  return out;
}

void print_analysis_json(const Analysis& result, bool maps) {
  Json models = Json::array();
  for (std::size_t i = 0; i < result.models.size(); ++i) {
    const ModelAttention& model = result.models[i];
    const int64_t side = std::max(model.sequence.row_count(), model.sequence.column_count());
    models.push_back(json_of_model(model, result.heads[i], maps && side <= kMostTokensInJson));
  }
  const Json all{{"title", result.title}, {"about", result.subtitle}, {"models", models}};
  // A token's bytes may be part of a character only.
  fmt::print("{}\n", all.dump(1, ' ', false, Json::error_handler_t::replace));
}

/// At most four decimals, or two digits and an exponent, in six characters where they suffice.
std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0.0) return "0";
  if (std::abs(value) < 1e-3) {
    const int decimals = value < 0.0 || value < 1e-9 ? 0 : 1;
    std::string text = fmt::format("{:.{}e}", value, decimals);
    if (const std::size_t at = text.find("e-0"); at != std::string::npos) text.erase(at + 2, 1);
    return text;
  }
  const std::string text = fmt::format("{:.4f}", value);
  return text.size() <= 6 ? text : fmt::format("{:.3f}", value);
}

void print_statistics(const ModelAttention& model, const HeadIndex& shown) {
  fmt::print("{}: {}\n", model.name, model.description);
  TextTable table{.lines = {"layer head"}, .marks = {""}, .columns = {}};
  for (const analysis::Statistic& name : model.statistics.names) {
    table.columns.push_back({statistic_heading(name.key), {}});
  }
  for (const analysis::StatisticsTable::Row& row : model.statistics.rows) {
    table.lines.push_back(fmt::format("{:>5} {:>4}", row.layer, row.head));
    table.marks.emplace_back(row.layer == shown.layer && row.head == shown.head ? " *" : "");
    for (std::size_t i = 0; i < row.values.size(); ++i) {
      table.columns[i].cells.push_back(short_number(row.values[i]));
    }
  }
  print_table(table, 6, 1);
}

void write_tables(const std::string& path, const std::vector<ModelAttention>& models) {
  if (models.size() == 1) return io::write_text(path, to_csv(models.front().statistics));
  std::vector<std::pair<std::string, analysis::StatisticsTable>> tables;
  for (const ModelAttention& model : models) tables.emplace_back(model.name, model.statistics);
  io::write_text(path, to_csv(tables));
}

int run_analyze(const AnalyzeOptions& given) {
  AnalyzeOptions options = given;
  options.request.folders = {options.model};
  for (const std::string& folder : options.compare) options.request.folders.push_back(folder);
  for (const std::string& path : {options.out, options.png, options.svg, options.csv}) {
    check_writable(path);
  }
  const Analysis result = analyze(options.request);
  if (!options.out.empty()) write_page(options, result);
  if (!options.csv.empty()) write_tables(options.csv, result.models);
  if (options.ascii || !options.png.empty() || !options.svg.empty()) {
    const analysis::Picture picture = picture_in(result, options.map);
    analysis::PictureStyle style;
    style.theme = options.theme == "dark" ? analysis::PictureStyle::Theme::kDark
                                          : analysis::PictureStyle::Theme::kLight;
    style.range = options.range;
    style.root = !options.linear;
    style.panel_pixels = kMostPanelPixels;
    if (!options.png.empty()) io::write_text(options.png, analysis::to_png(picture, style));
    if (!options.svg.empty()) io::write_text(options.svg, analysis::to_svg(picture, style));
    if (options.ascii) print_ascii(picture, style);
  }
  if (options.json) {
    print_analysis_json(result, options.request.layer && options.request.head);
  } else if (!options.ascii) {
    for (std::size_t i = 0; i < result.models.size(); ++i) {
      print_statistics(result.models[i], result.heads[i]);
    }
    fmt::print(
        "\n* the head that page and pictures show; what the columns mean: docs/analysis.md\n");
    if (!options.out.empty()) fmt::print("page in {}\n", options.out);
  }
  return 0;
}

/// What needs one of several options: CLI11's needs() means all of them.
void check_combinations(const CLI::App& verb) {
  const auto given = [&](const char* name) { return verb.get_option(name)->count() > 0; };
  const bool text = given("--text") || given("--input");
  if (!text && !given("--prompt-ids") && !given("--task") && !given("--data")) {
    throw CLI::RequiredError("One of --text, --prompt-ids, --input, --task and --data");
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
  CLI::Option_group* what = verb.add_option_group("text", "What to look at");
  what->add_option("--text", text.text, "text to look at");
  what->add_option("--prompt-ids", text.prompt_ids, "token ids to look at: 5,7,9")->delimiter(',');
  what->add_option("--input", text.input, "file whose text to look at; - reads standard input");
  CLI::Option* task =
      what->add_option("--task", text.task,
                       "an example of a generated task: needle, recall, classify, summarize")
          ->check(CLI::IsMember({"needle", "recall", "classify", "summarize"}));
  what->require_option(0, 1);
  CLI::Option* data =
      verb.add_option("--data", text.data,
                      "statistics over a whole data set: text file, folder, JSONL or token file");
  verb.add_option("--seq-len", text.seq_len, "tokens of --data at a time (the model's maximum)")
      ->check(integer_in(1, int64_t{1} << 24))
      ->needs(data);
  verb.add_option(
      "--summary", text.summary,
      "with --text or --input: what an encoder-decoder's decoder reads (what it writes)");
  verb.add_option("--set", text.settings,
                  "key=value of the task, over the run's own: needle.length=256")
      ->allow_extra_args(false)
      ->needs(task);
  verb.add_option("--examples", text.examples, "examples of a task that are counted (8)")
      ->check(integer_in(1, int64_t{1} << 24))
      ->needs(task)
      ->excludes(data);
  verb.add_option("--seed", text.seed, "of the task's examples (0)")
      ->check(integer_from(0))
      ->needs(task);
}

void add_outputs(CLI::App& verb, AnalyzeOptions& options) {
  verb.add_option("--out", options.out, "HTML page with every map, in one file");
  verb.add_option("--png", options.png, "picture of one head");
  verb.add_option("--svg", options.svg, "the same as SVG");
  verb.add_option("--csv", options.csv, "statistics per layer and head");
  CLI::Option* ascii = verb.add_flag("--ascii", options.ascii, "the picture on the terminal");
  verb.add_flag("--json", options.json,
                "one JSON object on standard output; with --layer and --head its maps too")
      ->excludes(ascii);
  verb.add_option("--map", options.map, "maps in pictures: all, 1, 2 or difference (all)")
      ->check(CLI::IsMember({"all", "1", "2", "difference"}));
  verb.add_option("--theme", options.theme, "of pictures: light or dark (light)")
      ->check(CLI::IsMember({"light", "dark"}));
  verb.add_option("--range", options.range, "weight of the strongest colour (the largest)")
      ->check(positive());
  verb.add_flag("--linear", options.linear, "colours follow the weight, not its square root");
}

}  // namespace

Run add_analyze(CLI::App& app) {
  auto options = std::make_shared<AnalyzeOptions>();
  CLI::App* verb = app.add_subcommand("analyze", "What the attention of a model does");
  verb->add_option("--model", options->model, "model folder or checkpoint")->required();
  verb->add_option("--compare", options->compare, "another one beside it; may be given again")
      ->allow_extra_args(false);
  add_text_options(*verb, options->request.text);
  add_outputs(*verb, *options);
  verb->callback([verb] { check_combinations(*verb); });
  verb->add_option("--layer", options->request.layer,
                   "layer of the head that page and pictures show (the strongest)");
  verb->add_option("--head", options->request.head, "that head in its layer");
  verb->add_option("--threshold", options->request.threshold,
                   "entries below it count as nothing in the sparsity (0.001)")
      ->check(positive());
  verb->add_option("--part", options->request.part,
                   "in pictures: encoder, decoder or cross-attention (encoder); path 0, ...");
  verb->add_option("--dtype", options->request.dtype, "float32 or bfloat16 (float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  add_device_option(*verb, options->request.device);
  verb->footer(
      "Example:\n  diffattn analyze --model runs/a/model --text \"Once upon a time\" --out "
      "report.html");
  return [options] { return run_analyze(*options); };
}

}  // namespace diffattn::app
