// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/attention_report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "diffattn/error.h"

namespace diffattn::analysis {
namespace {

constexpr int64_t kMostOverviewSide = 512;

void check_tokens(const ModelAttention& model) {
  const nn::HeadTensors& call = model.calls.front();
  const int64_t rows = call.q1.size(1), columns = call.k1.size(1);
  const Sequence& sequence = model.sequence;
  if (sequence.row_count() == rows && sequence.column_count() == columns) return;
  throw Error("diffattn: " + model.name + ": expected " + std::to_string(rows) + " query and " +
              std::to_string(columns) + " key tokens, got " + std::to_string(sequence.row_count()) +
              " and " + std::to_string(sequence.column_count()));
}

/// Returns a bound on the bytes that the maps of one head take in the file: their size before
/// compression, encoded as base64.
int64_t stored_bytes(const ModelAttention& model) {
  const int64_t rows = model.sequence.row_count(), columns = model.sequence.column_count();
  const int64_t side = std::max(rows, columns);
  const bool exact = side <= 256;  // the page computes the difference of exact maps
  const int64_t planes = model.calls.front().single_map ? 1 : exact ? 2 : 3;
  const int64_t cell = exact ? 4 : side <= 1024 ? 2 : 1;
  const int64_t entries = rows * columns * planes * cell * 4 / 3;
  // The coarse levels of long texts have less than 1/14 of the cells, of two bytes each.
  return side <= 512 ? entries : entries + entries / 7;
}

/// Returns the same for maps that are downsampled to at most `side` cells a side.
int64_t overview_bytes(const ModelAttention& model, int64_t side) {
  const int64_t planes = model.calls.front().single_map ? 1 : 3;
  return std::min(model.sequence.row_count(), side) *
         std::min(model.sequence.column_count(), side) * planes * 4 / 3;
}

int64_t all_heads(const ModelAttention& model) { return model.layers() * model.heads(); }

/// Returns the largest side of downsampled maps, 512, 256, ... or 1 cell, with which all heads fit
/// into `max_bytes`.
int64_t overview_side(const std::vector<ModelAttention>& models, int64_t max_bytes) {
  int64_t side = kMostOverviewSide;
  const auto total = [&] {
    int64_t bytes = 0;
    for (const ModelAttention& model : models) {
      bytes += all_heads(model) * overview_bytes(model, side);
    }
    return bytes;
  };
  while (side > 1 && total() > max_bytes) side /= 2;
  return side;
}

/// Says which maps of a page keep every entry.
struct ExactMaps {
  bool all = true, opened = true;
};

ExactMaps exact_maps(const std::vector<ModelAttention>& models, const ReportOptions& options) {
  int64_t total = 0, opened = 0;
  for (const ModelAttention& model : models) {
    total += all_heads(model) * stored_bytes(model);
    opened += stored_bytes(model);
  }
  return {.all = total <= options.max_bytes, .opened = opened <= options.max_opened_bytes};
}

ReportModel report_model(const ModelAttention& model) {
  ReportModel out;
  out.name = model.name;
  out.description = model.description;
  out.layers = model.layers();
  out.heads = model.heads();
  out.lambda = model.lambda;
  out.statistics = model.statistics;
  return out;
}

void append_panels(Picture& picture, const HeadMaps& maps, Planes planes, const std::string& name) {
  const bool all = planes == Planes::kAll;
  if (maps.p2.empty()) {
    if (planes != Planes::kMap2) picture.panels.push_back({name + "attention map", maps.p1});
    return;
  }
  if (all || planes == Planes::kMap1) picture.panels.push_back({name + "map 1", maps.p1});
  if (all || planes == Planes::kMap2) picture.panels.push_back({name + "map 2", maps.p2});
  if (all || planes == Planes::kDifference) {
    picture.panels.push_back(
        {name + "map 1 \u2212 \u03bb\u00b7map 2", difference_of(maps, picture.columns)});
  }
}

/// Returns all heads of a model, starting with the one that the page opens first.
std::vector<HeadIndex> head_order(const ModelAttention& model, const HeadIndex& shown) {
  std::vector<HeadIndex> order = {shown};
  for (int64_t layer = 0; layer < model.layers(); ++layer) {
    for (int64_t head = 0; head < model.heads(); ++head) {
      if (layer != shown.layer || head != shown.head) order.push_back({layer, head});
    }
  }
  return order;
}

}  // namespace

void describe(ModelAttention& model) {
  if (model.calls.empty()) {
    throw Error("diffattn: " + model.name + ": expected at least one attention layer, got none");
  }
  check_tokens(model);
  VisibleColumns visible = visible_columns(model.calls.front());
  model.sequence.visible_begin = std::move(visible.begin);
  model.sequence.visible_end = std::move(visible.end);
  if (!model.statistics.names.empty()) return;
  AttentionStatistics statistics;
  statistics.add(model.calls);
  model.statistics = statistics.table();
  model.lambda = statistics.lambda();
}

Sequence path_sequence(Sequence tokens, int64_t path) {
  if (path == 0) return tokens;
  const int64_t keys_per_token = path + 1;
  const std::vector<std::string> labels = tokens.columns.empty() ? tokens.rows : tokens.columns;
  tokens.columns.clear();
  for (const std::string& label : labels) {
    for (int64_t key = 0; key < keys_per_token; ++key) {
      tokens.columns.push_back(label + " \u00b7" + std::to_string(key));
    }
  }
  for (Region& region : tokens.regions) {
    region.begin *= keys_per_token;
    region.end *= keys_per_token;
  }
  return tokens;
}

HeadIndex strongest_head(const StatisticsTable& table, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    const auto name = std::find_if(table.names.begin(), table.names.end(),
                                   [&](const Statistic& one) { return one.key == key; });
    if (name == table.names.end()) continue;
    const auto column = static_cast<size_t>(name - table.names.begin());
    const StatisticsTable::Row* best = nullptr;
    for (const StatisticsTable::Row& row : table.rows) {
      const double value = row.values[column];
      if (std::isfinite(value) && (best == nullptr || value > best->values[column])) best = &row;
    }
    if (best != nullptr && best->values[column] > 0) return {best->layer, best->head};
  }
  return {};
}

std::optional<HeadIndex> head_on_answer(const ModelAttention& model, std::optional<int64_t> layer,
                                        std::optional<int64_t> head) {
  std::vector<ColumnRange> answer;
  for (const Region& region : model.sequence.regions) {
    if (region.kind == "answer") answer.push_back({region.begin, region.end});
  }
  if (!model.sequence.question || answer.empty()) return {};
  std::optional<HeadIndex> best;
  double most = 0.0;
  for (int64_t l = layer.value_or(0); l < (layer ? *layer + 1 : model.layers()); ++l) {
    const auto mass =
        mass_on(model.calls[static_cast<size_t>(l)], *model.sequence.question, answer);
    for (int64_t h = head.value_or(0); h < (head ? *head + 1 : model.heads()); ++h) {
      const double here = mass[static_cast<size_t>(h)];
      if (best && here <= most) continue;
      best = {l, h};
      most = here;
    }
  }
  return best;
}

void write_report(const std::string& path, Report report, const std::vector<ModelAttention>& models,
                  const ReportOptions& options) {
  std::vector<int64_t> sequence_of;
  int64_t heads = 0;
  for (const ModelAttention& model : models) {
    const auto known = std::find(report.sequences.begin(), report.sequences.end(), model.sequence);
    sequence_of.push_back(known - report.sequences.begin());
    if (known == report.sequences.end()) report.sequences.push_back(model.sequence);
    report.models.push_back(report_model(model));
    heads += all_heads(model);
  }
  ReportWriter writer(path, report);
  const ExactMaps exact = exact_maps(models, options);
  const int64_t side = overview_side(models, options.max_bytes);
  int64_t done = 0;
  for (size_t i = 0; i < models.size(); ++i) {
    const HeadIndex shown = i < options.shown.size() ? options.shown[i] : HeadIndex{};
    for (const auto& [layer, head] : head_order(models[i], shown)) {
      HeadMaps maps = head_maps(models[i].calls, layer, head);
      maps.model = static_cast<int64_t>(i);
      maps.sequence = sequence_of[i];
      const bool opened = layer == shown.layer && head == shown.head;
      maps.full = exact.all || (opened && exact.opened);
      maps.overview_side = side;
      writer.add(maps);
      if (options.progress) options.progress(++done, heads);
    }
  }
  writer.commit();
}

Picture picture_of(const std::vector<ModelAttention>& models, const std::vector<HeadIndex>& heads,
                   Planes planes) {
  const Sequence& sequence = models.at(0).sequence;
  Picture picture;
  picture.rows = sequence.row_count();
  picture.columns = sequence.column_count();
  picture.row_labels = sequence.rows;
  picture.column_labels = sequence.columns.empty() ? sequence.rows : sequence.columns;
  picture.regions = sequence.regions;
  picture.visible_begin = sequence.visible_begin;
  picture.visible_end = sequence.visible_end;
  bool rows = false;  // if a model has several maps, every model starts a row
  std::vector<size_t> starts;
  for (size_t i = 0; i < models.size(); ++i) {
    const size_t start = picture.panels.size();
    const HeadMaps maps = head_maps(models[i].calls, heads[i].layer, heads[i].head);
    append_panels(picture, maps, planes, models.size() > 1 ? models[i].name + ": " : "");
    rows = rows || picture.panels.size() > start + 1;
    if (picture.panels.size() > start) starts.push_back(start);
  }
  for (const size_t start : starts) picture.panels[start].starts_row = rows;
  if (picture.panels.empty()) {
    throw Error("diffattn: map: expected a differential model for map 2, got a plain one");
  }
  return picture;
}

}  // namespace diffattn::analysis
