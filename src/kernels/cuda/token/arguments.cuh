// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/token_step.h"

namespace diffattn::cuda::token {

/// The factor of stored products' inputs x * weight. They are not divided by the RMS of x yet, and
/// float16 ends at 65504.
template <class T>
inline constexpr float kScaled = __is_same(T, float16) ? 1.0f / 16.0f : 1.0f;

/// Chooses how a product finishes its results.
enum class Epilogues { kHeads, kAdd, kGate, kLogits };

/// The weight rows that a tile of 8 outputs holds. Outputs g and g + 4, g < 4, form a pair, which
/// one thread finishes.
enum class TileRows {
  kConsecutive,     // rows r .. r + 7
  kRotaryHalves,    // rows r .. r + 3 and those half a rotary width behind them
  kRotaryAdjacent,  // rows 2 g and 2 g + 1 form a pair
  kTwoMatrices,     // rows r .. r + 3 of both matrices
};

/// One matrix, or two of equal shape whose rows are interleaved, from tile `first_tile` on.
template <class T>
struct Segment {
  const T *weight = nullptr, *second = nullptr;  // [rows, in]
  const T *bias = nullptr, *second_bias = nullptr;
  int rows = 0;
  int first_tile = 0;
  TileRows tile_rows = TileRows::kConsecutive;
};

template <class T>
struct ProductArguments {
  static constexpr int kMaxSegments = 4;

  const T* a = nullptr;  // [rows, in]
  int rows = 0, in = 0;
  const float* squares = nullptr;  // [rows, kMaxParts], of x
  int parts = 0;                   // 0: no norm
  float eps = 0.0f;
  Segment<T> segments[kMaxSegments];
  int segment_count = 0, tiles = 0;
  int head_dim = 1, rotary_width = 0;
  Epilogues epilogue = Epilogues::kLogits;

  // kHeads
  Projection projection = {};
  Cache cache = {};
  const int32_t* positions = nullptr;  // [rows]
  // kAdd
  Residual residual = {};
  const T* next_norm = nullptr;
  // kGate: [rows, inner]; kLogits: float32 [rows, outputs]
  void* out = nullptr;
  int out_width = 0;

  __device__ int segment_of(int tile) const {
    int s = 0;
#pragma unroll
    for (int i = 1; i < kMaxSegments; ++i) s += i < segment_count && tile >= segments[i].first_tile;
    return s;
  }

  /// Row of output g, 0 to 7, of a tile that is `tile` tiles behind its segment's first.
  __device__ int row_in_matrix(const Segment<T>& segment, int tile, int g) const {
    switch (segment.tile_rows) {
      case TileRows::kTwoMatrices: return tile * 4 + g % 4;
      case TileRows::kConsecutive: return tile * 8 + g;
      default: break;
    }
    const int head = tile * 8 / head_dim, column = tile * 8 % head_dim;
    if (column >= rotary_width) return tile * 8 + g;
    if (segment.tile_rows == TileRows::kRotaryAdjacent) return tile * 8 + g % 4 * 2 + g / 4;
    return head * head_dim + column / 2 + g % 4 + g / 4 * (rotary_width / 2);
  }

  /// Returns the weight row of output g of a tile; any row if it does not exist.
  __device__ const T* weight_row(int tile, int g) const {
    const Segment<T>& segment = segments[segment_of(min(tile, tiles - 1))];
    const int row = row_in_matrix(segment, min(tile, tiles - 1) - segment.first_tile, g);
    const T* const matrix =
        segment.tile_rows == TileRows::kTwoMatrices && g >= 4 ? segment.second : segment.weight;
    return matrix + int64_t{min(row, segment.rows - 1)} * in;
  }
};

}  // namespace diffattn::cuda::token
