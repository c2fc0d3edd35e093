// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/analysis_output.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/terminal/stop_signal.h"
#include "apps/diffattn/terminal/terminal.h"
#include "apps/diffattn/terminal/text_table.h"
#include "diffattn/io/file.h"

namespace diffattn::app {
namespace {

using analysis::HeadIndex;
using analysis::ModelAttention;

/// JSON has the entries of maps up to this many tokens.
constexpr int64_t kMostTokensInJson = 512;

analysis::Planes planes_from_name(const std::string& map) {
  if (map == "1") return analysis::Planes::kMap1;
  if (map == "2") return analysis::Planes::kMap2;
  return map == "difference" ? analysis::Planes::kDifference : analysis::Planes::kAll;
}

Json lambda_json(const analysis::LambdaLayer& layer) {
  Json heads = Json::array();
  for (const analysis::LambdaValue& value : layer.heads) {
    heads.push_back({{"mean", value.mean}, {"min", value.min}, {"max", value.max}});
  }
  return {
      {"layer", layer.layer}, {"init", layer.init ? Json(*layer.init) : Json()}, {"heads", heads}};
}

/// Returns a row-major map as a list of rows.
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

Json model_json(const ModelAttention& model, const HeadIndex& shown, bool maps) {
  Json lambda = Json::array();
  for (const analysis::LambdaLayer& layer : model.lambda) lambda.push_back(lambda_json(layer));
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

/// Returns a number in six characters if possible: up to four decimals, or two digits and an
/// exponent.
std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0.0) return "0";
  if (std::abs(value) < 1e-3) {
    const int decimals = value < 0.0 || value < 1e-9 ? 0 : 1;
    std::string text = fmt::format("{:.{}e}", value, decimals);
    if (const size_t at = text.find("e-0"); at != std::string::npos) text.erase(at + 2, 1);
    return text;
  }
  const std::string text = fmt::format("{:.4f}", value);
  return text.size() <= 6 ? text : fmt::format("{:.3f}", value);
}

void print_model_statistics(const ModelAttention& model, const HeadIndex& shown) {
  print_out("{}: {}\n", model.name, model.description);
  TextTable table{.lines = {"layer head"}, .marks = {""}, .columns = {}};
  for (const analysis::Statistic& name : model.statistics.names) {
    table.columns.push_back({statistic_heading(name.key), {}});
  }
  for (const analysis::StatisticsTable::Row& row : model.statistics.rows) {
    table.lines.push_back(fmt::format("{:>5} {:>4}", row.layer, row.head));
    table.marks.emplace_back(row.layer == shown.layer && row.head == shown.head ? " *" : "");
    for (size_t i = 0; i < row.values.size(); ++i) {
      table.columns[i].cells.push_back(short_number(row.values[i]));
    }
  }
  print_table(table, 6, 1);
}

}  // namespace

void write_page(const std::string& path, const AnalysisResult& result) {
  analysis::Report report;
  report.title = result.title;
  report.subtitle = result.subtitle;
  analysis::ReportOptions options;
  options.shown = result.heads;
  int64_t heads = 0;
  for (const ModelAttention& model : result.models) heads += model.layers() * model.heads();
  ProgressBar bar("maps", heads);
  options.progress = [&](int64_t, int64_t) {
    check_interrupt();
    bar.step("");
  };
  analysis::write_report(path, report, result.models, options);
}

void write_statistics(const std::string& path, const AnalysisResult& result) {
  const std::vector<ModelAttention>& models = result.models;
  if (models.size() == 1) return io::write_text(path, to_csv(models.front().statistics));
  std::vector<std::pair<std::string, analysis::StatisticsTable>> tables;
  for (const ModelAttention& model : models) tables.emplace_back(model.name, model.statistics);
  io::write_text(path, to_csv(tables));
}

analysis::Picture picture_of_result(const AnalysisResult& result, const std::string& map) {
  std::vector<ModelAttention> models;
  std::vector<HeadIndex> heads;
  std::string which;
  for (const size_t i : result.pictured) {
    models.push_back(result.models[i]);
    heads.push_back(result.heads[i]);
    const std::string name = result.pictured.size() > 1 ? result.models[i].name + ": " : "";
    which += fmt::format("{}{}layer {}, head {}", which.empty() ? "" : "; ", name,
                         heads.back().layer, heads.back().head);
  }
  analysis::Picture picture = analysis::picture_of(models, heads, planes_from_name(map));
  picture.title = result.pictured.size() > 1 ? which : result.title + ", " + which;
  return picture;
}

void print_picture(const analysis::Picture& picture, const analysis::PictureStyle& style) {
  const bool colours = is_terminal(STDOUT_FILENO) && environment_variable("NO_COLOR").empty();
  print_drawing(analysis::to_ascii(
      picture, colours ? analysis::TerminalColours::k256 : analysis::TerminalColours::kNone,
      terminal_columns(STDOUT_FILENO).value_or(100), style));
}

void print_analysis_json(const AnalysisResult& result, bool maps) {
  Json models = Json::array();
  for (size_t i = 0; i < result.models.size(); ++i) {
    const ModelAttention& model = result.models[i];
    const int64_t side = std::max(model.sequence.row_count(), model.sequence.column_count());
    models.push_back(model_json(model, result.heads[i], maps && side <= kMostTokensInJson));
  }
  const Json all{{"title", result.title}, {"about", result.subtitle}, {"models", models}};
  print_json(all, 1);
}

void print_statistics(const AnalysisResult& result) {
  for (size_t i = 0; i < result.models.size(); ++i) {
    print_model_statistics(result.models[i], result.heads[i]);
  }
  print_out("\n* head in page and pictures; docs/analysis.md explains the columns\n");
}

}  // namespace diffattn::app
