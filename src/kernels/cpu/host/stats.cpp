// SPDX-License-Identifier: Apache-2.0
//
// Row statistics and downsampled maps over all heads, in waves as in the forward.

#include <algorithm>

#include "diffattn/kernels/backend.h"
#include "kernels/cpu/host/head.h"
#include "kernels/cpu/host/kernels.h"
#include "kernels/cpu/host/waves.h"

namespace diffattn::cpu {
namespace {

constexpr int64_t kMaps = 3;  // p1, p2, A

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// The setup that both operations share: maps of all keys, without values.
struct MapsRun {
  const Problem& problem;
  const TileCode& code;
  const View<const void> no_values{};
  const PackPlan plan{.problem = problem, .v = no_values, .code = code, .rows_of_v = false};
  const int block_rows = whole_block_rows(problem.seq_k, code);
  const int64_t map_panels = panels_in_key_blocks(problem.seq_k, code);

  MapsBlock maps(const PackedKeys& keys, const Row* rows, int count) const {
    MapsBlock block = maps_of(problem, keys, map_panels);
    block.rows = rows;
    block.count = count;
    return block;
  }
};

struct StatsRun {
  const StatsParams& params;
  const MapsRun common;

  void run() const {
    const int64_t scratch =
        common.code.stats_scratch(common.block_rows, common.map_panels, params.head_dim);
    Waves(common.plan, scratch)
        .run(
            heads_of(params, /*empty=*/false),
            [&](const Head& head) { return ceil_div(head.rows, common.block_rows); },
            [&](const Head& head, const PackedKeys& keys, int64_t index, void* memory) {
              run_block(head, keys, index * common.block_rows, memory);
            });
  }

  void run_block(const Head& head, const PackedKeys& keys, int64_t first, void* memory) const {
    Row rows[kMaxBlockRows];
    float* stats[kMaxBlockRows];
    const int count = static_cast<int>(std::min<int64_t>(common.block_rows, head.rows - first));
    for (int i = 0; i < count; ++i) {
      const int64_t h = head.head(first + i), l = head.seq.q_begin + head.query(first + i);
      rows[i] = row_of(params, head, first + i);
      stats[i] = params.stats.as<float>().at(head.b, l, h);
    }
    const StatsBlock block{.maps = common.maps(keys, rows, count),
                           .stats = stats,
                           .sparse_threshold = static_cast<float>(params.sparse_threshold)};
    common.code.stats(&block, memory);
  }
};

/// Downsamples the maps. A task is some whole rows of cells of one head, so that only one task
/// writes a cell.
struct MapRun {
  const MapParams& params;
  const MapsRun common;
  const int64_t height = params.row_end - params.row_begin;
  /// Rows of cells per task: about one block of query rows.
  const int64_t task_cells =
      height == 0 ? 1 : std::max<int64_t>(1, common.block_rows* params.rows / height);
  const int64_t tasks_per_head = ceil_div(params.rows, task_cells);

  void run() const {
    const int64_t scratch =
        common.code.map_scratch(common.block_rows, common.map_panels, params.head_dim);
    const int64_t group = params.kv_heads == 0 ? 0 : params.heads / params.kv_heads;
    Waves(common.plan, scratch)
        .run(
            heads_of(params, /*empty=*/true), [&](const Head&) { return group * tasks_per_head; },
            [&](const Head& head, const PackedKeys& keys, int64_t index, void* memory) {
              run_cells(head, keys, index / tasks_per_head, index % tasks_per_head * task_cells,
                        memory);
            });
  }

  /// Returns the first query row of a row of cells.
  int64_t first_row(int64_t cell) const {
    return params.row_begin + ceil_div(cell * height, params.rows);
  }

  void run_cells(const Head& head, const PackedKeys& keys, int64_t member, int64_t cell,
                 void* memory) const {
    const int64_t end_cell = std::min(cell + task_cells, params.rows);
    const int64_t cells = params.rows * params.cols, h = head.first_head + member;
    float* grid = static_cast<float*>(params.map) + (head.b * params.heads + h) * kMaps * cells;
    for (int64_t m = 0; m < kMaps; ++m) {
      std::fill(grid + m * cells + cell * params.cols, grid + m * cells + end_cell * params.cols,
                0.0f);
    }
    const int64_t end = std::min(first_row(end_cell), head.seq.seq_q);  // packed: may be shorter
    for (int64_t m = first_row(cell); m < end; m += common.block_rows) {
      run_rows(head, keys, member * head.seq.seq_q, m, std::min(m + common.block_rows, end), grid,
               memory);
    }
  }

  /// Runs query rows [first, end) of the head whose rows begin at `head_row`.
  void run_rows(const Head& head, const PackedKeys& keys, int64_t head_row, int64_t first,
                int64_t end, float* grid, void* memory) const {
    Row rows[kMaxBlockRows];
    float* cells[kMaxBlockRows];
    for (int64_t m = first; m < end; ++m) {
      rows[m - first] = row_of(params, head, head_row + m);
      cells[m - first] = grid + (m - params.row_begin) * params.rows / height * params.cols;
    }
    const MapBlock block{.maps = common.maps(keys, rows, static_cast<int>(end - first)),
                         .cells = cells,
                         .col_begin = params.col_begin,
                         .col_end = params.col_end,
                         .cols = params.cols,
                         .map_stride = params.rows * params.cols};
    common.code.map(&block, memory);
  }
};

}  // namespace

void run_stats(const StatsParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  StatsRun{params, {params, code}}.run();
}

void run_map(const MapParams& params, const TileCode& code) {
  validate(params, /*host_arrays=*/true);
  MapRun{params, {params, code}}.run();
}

}  // namespace diffattn::cpu
