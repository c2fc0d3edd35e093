// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "analysis/report/base64.h"
#include "analysis/report/bundle.h"
#include "analysis/report/check.h"
#include "analysis/report/grid.h"
#include "analysis/report/header.h"
#include "analysis/report/text.h"
#include "analysis/report/tiles.h"
#include "analysis/report/zlib_stream.h"
#include "diffattn/io/file.h"

namespace diffattn::analysis {
namespace {

using nlohmann::json;

// The file stores every second level of the pyramid, starting with cells of 4 x 4 entries. The
// viewer computes the other levels. A level with at most this many cells per side has no coarser
// one.
constexpr int64_t kOverviewSide = 512;
constexpr int64_t kLevelStep = 2;

struct NamedMap {
  const char* name;
  std::span<const float> values;
};

json json_of(const std::vector<TilePlace>& places) {
  json out = json::array();
  for (const TilePlace& place : places) {
    out.push_back({place.tile_row, place.tile_column, place.offset, place.scale});
  }
  return out;
}

// Returns the levels to store, the coarsest first, so that the page can draw before the file is
// fully loaded.
std::vector<int64_t> stored_levels(int64_t side, const HeadMaps& maps) {
  if (!maps.full) {
    int64_t level = 0;
    while ((side + (int64_t{1} << level) - 1) >> level > maps.overview_side) ++level;
    return {level};
  }
  std::vector<int64_t> levels;
  for (int64_t level = kLevelStep; side >> (level - kLevelStep) > kOverviewSide;
       level += kLevelStep) {
    levels.insert(levels.begin(), level);
  }
  levels.push_back(0);
  return levels;
}

// Returns the format of a level. Downsampled maps take one byte per cell.
Precision precision_of(int64_t level, const HeadMaps& maps, Precision of_entries) {
  if (!maps.full) return Precision::kByte;
  return level == 0 ? of_entries : std::min(of_entries, Precision::kFloat16);
}

}  // namespace

std::vector<float> difference_of(const HeadMaps& maps, int64_t columns) {
  if (!maps.difference.empty()) return maps.difference;
  std::vector<float> out = maps.p1;
  for (size_t i = 0; i < out.size() && !maps.p2.empty(); ++i) {
    const size_t row = i / static_cast<size_t>(columns);
    out[i] -= maps.lambda[maps.lambda.size() == 1 ? 0 : row] * maps.p2[i];
  }
  return out;
}

struct ReportWriter::State {
  State(const std::string& path, const Report& source) : report(source), file(path) {}

  // Adds a compressed block with the tiles of all maps on that level to `pending`; returns its
  // index.
  json write_level(std::span<const NamedMap> maps, int64_t rows, int64_t columns, int64_t level,
                   Precision precision);

  Report report;
  io::AtomicFile file;
  std::string pending;  // blocks of the current map, written after its index
  int64_t blocks = 0;
};

json ReportWriter::State::write_level(std::span<const NamedMap> maps, int64_t rows, int64_t columns,
                                      int64_t level, Precision precision) {
  std::vector<uint8_t> bytes;
  json planes = json::object();
  for (const NamedMap& map : maps) {
    if (level == 0) {
      planes[map.name] = json_of(append_tiles(bytes, map.values, rows, columns, precision));
      continue;
    }
    const Grid grid = keep_extremes(map.values, rows, columns, int64_t{1} << level);
    planes[map.name] =
        json_of(append_tiles(bytes, grid.values, grid.rows, grid.columns, precision));
  }
  const std::string id = "block-" + std::to_string(blocks++);
  pending += "<script type=\"text/plain\" id=\"" + id + "\">";
  const std::string stream = zlib_stream(bytes, Effort::kUsual);
  pending += base64({reinterpret_cast<const uint8_t*>(stream.data()), stream.size()});
  pending += "</script>\n";
  return {{"level", level},
          {"format", format_name(precision)},
          {"block", id},
          {"planes", std::move(planes)}};
}

ReportWriter::ReportWriter(const std::string& path, const Report& report) {
  check(report);
  state_ = std::make_unique<State>(path, report);
  const ViewerBundle bundle = viewer_bundle();
  io::AtomicFile& file = state_->file;
  file.append(bundle.before_title);
  file.append(markup_text(report.title));
  file.append(bundle.before_header);
  file.append(json_in_html(header_of(report)));
  file.append(bundle.before_maps);
}

ReportWriter::ReportWriter(ReportWriter&&) noexcept = default;
ReportWriter::~ReportWriter() = default;

void ReportWriter::add(const HeadMaps& maps) {
  check(maps, state_->report);
  const Sequence& sequence = state_->report.sequences[static_cast<size_t>(maps.sequence)];
  const int64_t rows = sequence.row_count();
  const int64_t columns = sequence.column_count();
  const Precision precision = resolved(maps.precision, rows, columns);

  std::vector<NamedMap> planes = {{"p1", maps.p1}};
  if (!maps.p2.empty()) planes.push_back({"p2", maps.p2});
  std::vector<float> computed;
  if (maps.difference.empty() && !maps.p2.empty()) computed = difference_of(maps, columns);
  const bool own_difference = !maps.difference.empty();
  const std::span<const float> difference = own_difference ? maps.difference : computed;

  state_->pending.clear();
  json levels = json::array();
  for (const int64_t level : stored_levels(std::max(rows, columns), maps)) {
    const Precision stored = precision_of(level, maps, precision);
    // The page can compute the difference itself only from exact entries: it differs from the
    // difference of two rounded maps, and from the difference of the extremes of a cell.
    const bool derived = level == 0 && stored == Precision::kFloat32 && !own_difference;
    std::vector<NamedMap> on_level = planes;
    if (!difference.empty() && !derived) on_level.push_back({"difference", difference});
    levels.push_back(state_->write_level(on_level, rows, columns, level, stored));
  }
  const json index = {{"model", maps.model},
                      {"sequence", maps.sequence},
                      {"layer", maps.layer},
                      {"head", maps.head},
                      {"rows", rows},
                      {"columns", columns},
                      {"tile", kTileSide},
                      {"lambda", maps.lambda},
                      {"levels", std::move(levels)}};
  state_->file.append("<script type=\"application/json\" class=\"map\">");
  state_->file.append(json_in_html(index));
  state_->file.append("</script>\n");
  state_->file.append(state_->pending);
}

void ReportWriter::commit() {
  state_->file.append(viewer_bundle().end);
  state_->file.commit();
}

}  // namespace diffattn::analysis
