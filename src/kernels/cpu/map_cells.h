// SPDX-License-Identifier: Apache-2.0
//
// Downsamples p1, p2 and A of a block of query rows, in fp32. Each cell keeps its entry of largest
// magnitude, with its sign:
//
//   (1) (2) (3)  e1, e2 of all keys                                    Maps
//   for each key block, row and visible entry
//     p1 = e1 / l1,  p2 = e2 / l2,  A = p1 - lambda p2                 RowStats
//     if |entry| > |cell|: cell = entry                                for all three maps
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/row_stats.h"

namespace diffattn::cpu {

template <class Isa>
struct MapCells {
  static constexpr int kCols = Isa::kCols, kLanes = Isa::kLanes;

  const MapBlock& block;
  Carver<Isa> carver;
  Maps<Isa> maps{block.maps, carver};
  ValueProduct<Isa> product{maps, 0, carver};
  RowStats<Isa> entries{maps, product, carver};
  float* norm[2];  // [rows]: 1 / l1, lambda / l2

  MapCells(const MapBlock& in, void* memory) : block(in), carver{static_cast<char*>(memory), 0} {
    for (float*& x : norm) x = carver.template take<float>(maps.rows);
  }

  static int64_t scratch(int block_rows, int64_t map_panels, int64_t d) {
    MapBlock sizes{};
    sizes.maps.count = block_rows;
    sizes.maps.map_panels = map_panels;
    sizes.maps.head_dim = d;
    return MapCells(sizes, nullptr).carver.used;
  }

  void run() {
    maps.compute_all();
    maps.set_norm(norm);
    entries.for_each_key_block([&](int64_t first, int64_t last) {
      product.set_weights(norm, first);
      entries.begin_key_block(first);
      for (int r = 0; r < block.maps.count; ++r) {
        entries.for_each_seen(r, first, last,
                              [&](int64_t entry, uint32_t seen) { offer(r, entry, seen); });
      }
    });
  }

 private:
  void offer(int r, int64_t entry, uint32_t seen) {
    const int64_t column = (maps.origin + entry / kCols / maps.rows) * kCols + entry % kCols;
    if (column + kLanes <= block.col_begin || column >= block.col_end) return;
    const auto x = entries.at(r, entry);
    float values[3][kLanes];
    Isa::store(values[0], x.p1);
    Isa::store(values[1], x.p2);
    Isa::store(values[2], x.a);
    const int64_t width = block.col_end - block.col_begin;
    for (; seen != 0; seen &= seen - 1) {
      const int lane = __builtin_ctz(seen);
      const int64_t n = column + lane - block.col_begin;
      if (n < 0 || n >= width) continue;
      float* cell = block.cells[r] + (block.cols == width ? n : n * block.cols / width);
      for (int m = 0; m < 3; ++m) keep_extreme(cell[m * block.map_stride], values[m][lane]);
    }
  }

  /// Keeps the value of larger magnitude in `cell`. NaN always wins, so that a map shows it.
  static void keep_extreme(float& cell, float value) {
    if (value != value || __builtin_fabsf(value) > __builtin_fabsf(cell)) cell = value;
  }
};

}  // namespace diffattn::cpu
