// SPDX-License-Identifier: Apache-2.0
// make_reports FOLDER writes the reports and pictures for the browser tests, and expected.json with
// the numbers and colours that they must show.
#include <cmath>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "analysis/picture/colour.h"
#include "diffattn/analysis/picture.h"
#include "diffattn/analysis/report.h"
#include "diffattn/io/file.h"
#include "tests/analysis/synthetic.h"

namespace diffattn::analysis::testing {
namespace {

using nlohmann::json;

constexpr int64_t kLayers = 4;
constexpr int64_t kHeads = 4;

ReportModel model_of(const std::string& name, const SyntheticHead& kind, const Sequence& sequence,
                     int64_t layers = kLayers, int64_t heads = kHeads) {
  ReportModel model;
  model.name = name;
  model.layers = layers;
  model.heads = heads;
  model.statistics.names = attention_statistics();
  for (int64_t layer = 0; layer < layers; ++layer) {
    LambdaLayer lambda;
    lambda.layer = layer;
    if (!kind.token_lambda) lambda.init = lambda_init(layer);
    for (int64_t head = 0; head < heads; ++head) {
      SyntheticHead one = kind;
      one.layer = layer;
      one.head = head;
      const HeadMaps maps = synthetic_maps(sequence, one);
      model.statistics.rows.push_back({layer, head, statistics_of(maps, sequence)});
      if (maps.lambda.empty()) continue;
      LambdaValue value{0, maps.lambda[0], maps.lambda[0]};
      for (const float entry : maps.lambda) {
        value.mean += entry / static_cast<double>(maps.lambda.size());
        value.min = std::min<double>(value.min, entry);
        value.max = std::max<double>(value.max, entry);
      }
      lambda.heads.push_back(value);
    }
    if (kind.differential) model.lambda.push_back(lambda);
  }
  return model;
}

// Returns entries of the map at fixed positions, which the page must show.
json samples_of(const HeadMaps& maps, const Sequence& sequence) {
  json out = json::array();
  const int64_t rows = sequence.row_count();
  for (const auto& [row, column] : {std::pair<int64_t, int64_t>{rows - 1, 3},
                                    {rows - 1, rows / 2},
                                    {rows / 2, rows / 4},
                                    {rows - 2, 0},
                                    {5, 5}}) {
    const auto at = static_cast<size_t>(row * sequence.column_count() + column);
    const float lambda =
        maps.lambda.size() == 1 ? maps.lambda[0] : maps.lambda[static_cast<size_t>(row)];
    out.push_back({{"row", row},
                   {"column", column},
                   {"p1", maps.p1[at]},
                   {"p2", maps.p2[at]},
                   {"lambda", lambda},
                   {"difference", maps.p1[at] - lambda * maps.p2[at]}});
  }
  return out;
}

Picture picture_of(const HeadMaps& maps, const Sequence& sequence) {
  Picture picture;
  picture.title = "layer 2, head 1";
  picture.rows = sequence.row_count();
  picture.columns = sequence.column_count();
  picture.row_labels = picture.column_labels = sequence.rows;
  picture.visible_begin = sequence.visible_begin;
  picture.visible_end = sequence.visible_end;
  std::vector<float> difference(maps.p1.size());
  for (size_t i = 0; i < difference.size(); ++i) {
    difference[i] = maps.p1[i] - maps.lambda[0] * maps.p2[i];
  }
  picture.panels = {
      {"map 1", maps.p1}, {"map 2", maps.p2}, {"map 1 \u2212 \u03bb\u00b7map 2", difference}};
  return picture;
}

void write_small(const std::string& folder, json& expected) {
  const Sequence sequence = needle_sequence();
  Sequence cross;
  cross.name = "cross-attention";
  cross.rows.assign(sequence.rows.begin(), sequence.rows.begin() + 12);
  cross.columns.assign(sequence.rows.begin(), sequence.rows.begin() + 30);
  Report report;
  report.title = "Where the answer is found";
  report.subtitle = "three needles in 64 tokens; made-up heads with real softmax maps";
  report.sequences = {sequence, cross};
  const SyntheticHead kinds[] = {
      {0, 0, true, false, 1}, {0, 0, false, false, 1}, {0, 0, true, true, 2}};
  const char* names[] = {"DIFF", "Transformer", "DIFF V2"};
  for (int i = 0; i < 3; ++i) report.models.push_back(model_of(names[i], kinds[i], sequence));
  ReportWriter writer(folder + "/small.html", report);
  for (int64_t model = 0; model < 3; ++model) {
    for (int64_t i = 0; i < kLayers * kHeads; ++i) {
      SyntheticHead head = kinds[model];
      head.layer = i / kHeads;
      head.head = i % kHeads;
      HeadMaps maps = synthetic_maps(sequence, head);
      maps.model = model;
      if (model == 0 && head.layer == 2 && head.head == 1) {
        expected["small"] = samples_of(maps, sequence);
        const Picture picture = picture_of(maps, sequence);
        io::write_text(folder + "/small.png", to_png(picture, {.panel_pixels = 640}));
        io::write_text(folder + "/small.svg", to_svg(picture, {.panel_pixels = 640}));
        io::write_text(folder + "/small.txt",
                       to_ascii(picture, TerminalColours::kNone, 220, {.root = true}));
        io::write_text(folder + "/small.ansi",
                       to_ascii(picture, TerminalColours::k256, 140, {.root = true}));
        io::write_text(folder + "/statistics.json", to_json(report.models[0].statistics));
        io::write_text(folder + "/statistics.csv", to_csv(report.models[0].statistics));
      }
      writer.add(maps);
      if (model == 0 && i == 0) {
        HeadMaps on_cross = synthetic_maps(cross, head);
        on_cross.sequence = 1;
        writer.add(on_cross);
      }
    }
  }
  writer.commit();
}

void write_hostile(const std::string& folder) {
  Sequence sequence;
  sequence.name = "</option><script>alert(0)</script>";
  sequence.rows = hostile_tokens();
  sequence.regions = {{"<b>region</b>", "answer", 2, 5}};
  Report report;
  report.title = "</title><script>alert('title')</script>";
  report.subtitle = "<img src=x onerror=alert('subtitle')>";
  report.notes = {"<script>alert('note')</script>"};
  report.verdict = {"<img src=x onerror=alert('verdict')>"};
  report.examples = {{"<u>example</u>", "<s>note</s>", {{"<a>", {{"<iframe src=x>", "wrong"}}}}}};
  report.commands = {{"<u>purpose</u>", "</pre><script>alert('command')</script>"}};
  report.sequences = {sequence, sequence};
  report.models = {model_of("<i>model</i>", {}, sequence, 1, 1)};
  report.tables = {{"<u>table</u>",
                    "</script>",
                    {{"<s>label</s>", false}},
                    {{"<img src=x onerror=alert('cell')>"}}}};
  report.curves = {
      {"<b>curve</b>", "</svg>", "<script>", false, false, {{"</text>", {1, 2}, {3, 4}, {}, {}}}}};
  ReportWriter writer(folder + "/hostile.html", report);
  writer.add(synthetic_maps(sequence, {}));
  writer.commit();
}

// Writes a report of 4096 tokens with one strongly negative entry among sixteen million.
void write_large(const std::string& folder, json& expected) {
  const Sequence sequence = numbered_sequence(4096);
  Report report;
  report.title = "4096 tokens";
  report.sequences = {sequence};
  report.models = {{"DIFF", "", 1, 2, {}, {}}};
  ReportWriter writer(folder + "/large.html", report);
  for (int64_t head = 0; head < 2; ++head) {
    HeadMaps maps = synthetic_maps(sequence, {0, head, true, false, 3});
    const size_t lone = 3001 * 4096 + 1717;
    maps.p1[lone] = 0;
    maps.p2[lone] = 0.9f;
    maps.full = head == 0;
    if (head == 0) {
      expected["large"] = {{"row", 3001}, {"column", 1717}, {"difference", -maps.lambda[0] * 0.9f}};
    }
    writer.add(maps);
  }
  writer.commit();
}

void write_medium(const std::string& folder, json& expected) {
  const Sequence sequence = numbered_sequence(700);
  Report report;
  report.title = "700 tokens in half precision";
  report.sequences = {sequence};
  report.models = {{"DIFF", "", 1, 1, {}, {}}};
  ReportWriter writer(folder + "/medium.html", report);
  const HeadMaps maps = synthetic_maps(sequence, {0, 0, true, false, 4});
  expected["medium"] = samples_of(maps, sequence);
  writer.add(maps);
  writer.commit();
}

// Writes a comparison: verdict, curves, an example, folded tables, commands, and maps of two models
// on one text whose question is not in the last row.
void write_results(const std::string& folder) {
  Report report;
  report.title = "DIFF against an equal-size Transformer";
  report.subtitle = "multi-needle retrieval";
  report.verdict = {"DIFF gets 0.914 ± 0.010 of the answers right and Transformer 0.728 ± 0.020."};
  report.notes = {"Made-up numbers that show the components of a comparison."};
  Curves loss{"Validation loss", "step", "loss", false, false, {}};
  Curves accuracy{"Accuracy by number of needles", "needles", "accuracy", false, false, {}};
  for (int model = 0; model < 2; ++model) {
    Series one{model == 0 ? "DIFF" : "Transformer", {}, {}, {}, {}};
    for (int step = 0; step <= 2000; step += 50) {
      const double y =
          (model == 0 ? 0.9 : 1.25) + 3 * std::exp(-step / 420.0) + 0.03 * std::sin(step * 0.7);
      one.x.push_back(step);
      one.y.push_back(y);
      one.low.push_back(y - 0.08);
      one.high.push_back(y + 0.08);
    }
    loss.series.push_back(one);
    Series hits{one.name, {1, 2, 4, 6, 8}, {}, {}, {}};
    hits.y = model == 0 ? std::vector<double>{1, 0.97, 0.92, 0.87, 0.81}
                        : std::vector<double>{1, 0.9, 0.72, 0.58, 0.44};
    accuracy.series.push_back(hits);
  }
  loss.note = "Why the curve rises.";
  report.curves = {loss, accuracy, loss};
  report.examples = {{"One document, read out",
                      "",
                      {{"document", {{"KEEP1", "answer"}, {"w2", ""}}},
                       {"DIFF", {{"w1", ""}}},
                       {"Transformer", {{"w9", "wrong"}}}}}};
  report.commands = {{"is it luck?", "diffattn compare --task needle --seeds 14,15"}};
  using Better = TableColumn::Better;
  report.tables = {{"Result",
                    "Same data, seed and number of parameters.",
                    {{"model", false},
                     {"parameters", true, 6},
                     {"accuracy", true, 3, Better::kHigher},
                     {"loss", true, 3, Better::kLower},
                     {"tokens/s", true, 4, Better::kHigher}},
                    {{"DIFF", 1204224.0, 0.914, 0.902, 41230.0},
                     {"Transformer", 1204096.0, 0.728, 1.251, 44810.0}}}};
  report.tables.push_back(report.tables.front());
  report.tables.back().name = "Every number";
  Sequence sequence = needle_sequence();
  sequence.question = 40;
  sequence.rows[3] = "end\n";
  report.sequences = {sequence};
  const SyntheticHead kinds[] = {{0, 0, true, false, 1}, {0, 0, false, false, 1}};
  const char* names[] = {"DIFF", "Transformer"};
  for (int i = 0; i < 2; ++i) report.models.push_back(model_of(names[i], kinds[i], sequence, 2, 3));
  ReportWriter writer(folder + "/results.html", report);
  // Each model opens another head: the first that is added.
  const int64_t orders[2][6] = {{4, 0, 1, 2, 3, 5}, {2, 0, 1, 3, 4, 5}};
  for (int64_t model = 0; model < 2; ++model) {
    for (const int64_t i : orders[model]) {
      SyntheticHead head = kinds[model];
      head.layer = i / 3;
      head.head = i % 3;
      HeadMaps maps = synthetic_maps(sequence, head);
      maps.model = model;
      writer.add(maps);
    }
  }
  writer.commit();
}

// Writes a report with a text of one token and an empty report.
void write_tiny(const std::string& folder) {
  Sequence sequence = numbered_sequence(1);
  sequence.regions.clear();
  Report report;
  report.title = "one token";
  report.sequences = {sequence};
  report.models = {model_of("DIFF", {}, sequence, 1, 1)};
  ReportWriter writer(folder + "/tiny.html", report);
  writer.add(synthetic_maps(sequence, {}));
  writer.commit();
  report = {};
  report.title = "nothing";
  ReportWriter(folder + "/empty.html", report).commit();
}

json scale_table() {
  json out;
  for (const auto& [name, theme] : {std::pair{"light", PictureStyle::Theme::kLight},
                                    std::pair{"dark", PictureStyle::Theme::kDark}}) {
    for (int step = -kScaleSteps; step <= kScaleSteps; ++step) {
      const Rgb colour = scale_colour(theme, step);
      out[name].push_back({colour.r, colour.g, colour.b});
    }
  }
  return out;
}

}  // namespace
}  // namespace diffattn::analysis::testing

int main(int count, char** arguments) {
  using namespace diffattn::analysis::testing;
  if (count != 2) {
    std::fprintf(stderr, "usage: make_reports FOLDER\n");
    return 2;
  }
  try {
    const std::string folder = arguments[1];
    nlohmann::json expected;
    write_small(folder, expected);
    write_hostile(folder);
    write_medium(folder, expected);
    write_large(folder, expected);
    write_results(folder);
    write_tiny(folder);
    expected["scale"] = scale_table();
    diffattn::io::write_text(folder + "/expected.json", expected.dump(1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_reports: %s\n", error.what());
    return 1;
  }
  return 0;
}
