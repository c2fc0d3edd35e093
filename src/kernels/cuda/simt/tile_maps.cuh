// SPDX-License-Identifier: Apache-2.0
//
// Score tiles of both maps, [32 queries, 32 keys] in float, for the kernels that need the maps
// themselves (stats/, map/). These kernels make several passes over the maps. Each pass recomputes
//
//   s = scale log2(e) q.k + mask,  p = exp2(s - m) / l
//
// from q and k, so that no map is ever stored. A block has 256 threads. For bfloat16 and float16,
// each of its 8 warps computes a 16 x 8 part of the products with mma.sync. For float32, each
// thread computes four dot products.
#pragma once

#include <cfloat>
#include <cmath>

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/simt/tile.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::simt {

/// Inputs of the maps, as kernel arguments.
template <class T>
struct MapInputs {
  Shape shape;
  Rows<const T> q1, q2, k1, k2;   // [B, M, H, D], [B, N, Hkv, D]
  Rows<const float> lambda;       // [B, M, H]
  float scale_log2, scale2_log2;  // scale log2(e) of map 1 and map 2
  bool q_aligned, k_aligned;      // rows may be read in 16-byte chunks
};

template <class T>
MapInputs<T> map_inputs(const Problem& problem) {
  const int64_t d = problem.head_dim;
  return {.shape = shape_of(problem),
          .q1 = rows_of<const T>(problem.q1),
          .q2 = rows_of<const T>(problem.q2),
          .k1 = rows_of<const T>(problem.k1),
          .k2 = rows_of<const T>(problem.k2),
          .lambda = rows_of<const float>(problem.lambda),
          .scale_log2 = static_cast<float>(problem.scale * kLog2E),
          .scale2_log2 = static_cast<float>(problem.scale2 * kLog2E),
          .q_aligned = has_aligned_rows(problem.q1, d) && has_aligned_rows(problem.q2, d),
          .k_aligned = has_aligned_rows(problem.k1, d) && has_aligned_rows(problem.k2, d)};
}

/// Softmax state of one row of one map: p = exp2(s - m) * inverse.
struct RowSoftmax {
  float m, inverse;  // row maximum (base 2) and 1 / l

  /// Returns p of a visible score. NaN stays NaN.
  __device__ float probability(float s) const { return ptx::probability(s - m) * inverse; }
};

template <class T>
struct TileMaps {
  const MapInputs<T>& in;
  float* const smem;
  const int b;
  const ThreadPosition at{};
  const Sequence seq = in.shape.sequence(b);
  const int width = in.shape.head_dim;
  const int pitch = pitch_of(width);

  float* const x_smem = smem;                     // [32, pitch]: q or k of the score tile's rows
  float* const y_smem = x_smem + kBlock * pitch;  // [32, pitch]: k or q of its columns
  // Scores of both maps, [32, kScorePitch] each. Callers may overwrite their own entries.
  float* const s1_smem = smem + tile_floats(width);
  float* const s2_smem = s1_smem + kBlock * kScorePitch;

  /// Returns the floats of shared memory per block.
  __host__ __device__ static constexpr int smem_floats(int width) {
    return tile_floats(width) + 2 * kBlock * kScorePitch;
  }

  /// Columns that any of the 32 rows from m0 on may see, ignoring the mask tensor. begin is a
  /// multiple of 32.
  struct Range {
    int begin, end;
  };
  __device__ Range visible_range(int m0) const {
    return {max(0, seq.first_visible(m0)) / kBlock * kBlock,
            seq.end_visible(min(m0 + kBlock, seq.seq_q) - 1)};
  }

  __device__ void load_queries(float* tile, const Rows<const T>& rows, int h, int m0) const {
    load_tile(tile, rows.at(b, seq.q_begin + m0, h), rows.seq_stride, 0, seq.seq_q - m0, width,
              pitch);
  }
  __device__ void load_keys(float* tile, const Rows<const T>& rows, int g, int n0) const {
    load_tile(tile, rows.at(b, seq.k_begin + n0, g), rows.seq_stride, seq.first_key - n0,
              seq.end_key - n0, width, pitch);
  }

  /// Computes this thread's scores s (see the top) of queries [m0, m0 + 32) and keys [n0, n0 + 32).
  /// Queries are the rows of the tile, or the columns if `keys_own`. A score is -inf if the key is
  /// hidden from the query, even if the product is NaN. Every pass gets the same bits.
  __device__ void scores(bool keys_own, int h, int m0, int n0, Scores& s1, Scores& s2) const {
    if constexpr (sizeof(T) == 2) {
      matrix_products(keys_own, h, m0, n0);
      load_scores(s1_smem, s1);
      load_scores(s2_smem, s2);
    } else {
      dots(keys_own, in.q1, in.k1, h, m0, n0, s1);
      dots(keys_own, in.q2, in.k2, h, m0, n0, s2);
    }
    const HeadMask mask(in.shape, seq, b, h);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = at.ty + 16 * i, column = at.tx + 16 * j;
        const float bias =
            mask.bias(m0 + (keys_own ? column : row), n0 + (keys_own ? row : column));
        const bool visible = bias != -INFINITY;
        s1[i][j] = visible ? not_lowest(fmaf(s1[i][j], in.scale_log2, bias)) : -INFINITY;
        s2[i][j] = visible ? not_lowest(fmaf(s2[i][j], in.scale2_log2, bias)) : -INFINITY;
      }
    }
  }

  /// Calls f(i, n, s1, s2) for this thread's visible columns n of row m0 + ty + 16 i, in ascending
  /// order of n.
  template <class F>
  __device__ void for_each_visible(int h, int m0, F f) const {
    const Range range = visible_range(m0);
    for (int n0 = range.begin; n0 < range.end; n0 += kBlock) {
      Scores s1, s2;
      scores(/*keys_own=*/false, h, m0, n0, s1, s2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (s1[i][j] != -INFINITY) f(i, n0 + at.tx + 16 * j, s1[i][j], s2[i][j]);
        }
      }
    }
  }

  /// Computes both maps' softmax state of rows m0 + ty + 16 i. Every thread of a row gets the same
  /// bits.
  __device__ void softmax(int h, int m0, RowSoftmax (&p1)[2], RowSoftmax (&p2)[2]) const {
    OnlineRow row1[2], row2[2];
    for_each_visible(h, m0, [&](int i, int, float s1, float s2) {
      row1[i].add(s1);
      row2[i].add(s2);
    });
    for (int i = 0; i < 2; ++i) p1[i] = row1[i].finish(), p2[i] = row2[i].finish();
  }

 private:
  /// Softmax state of a row over one thread's columns.
  struct OnlineRow {
    float m = -INFINITY, l = 0.0f;

    __device__ void add(float s) {
      const float m_new = fmaxf(m, s);
      l = l * ptx::exp2(m - m_new) + ptx::exp2(s - m_new);
      m = m_new;
    }
    __device__ RowSoftmax finish() const {
      const float m_row = row_max(m);
      // A row that sees no column has m_row = -inf, and -inf - (-inf) is NaN.
      const float m_finite = m_row == -INFINITY ? 0.0f : m_row;
      return {m_finite, 1.0f / row_sum(l * ptx::exp2(m - m_finite))};
    }
  };

  /// Replaces -inf by -FLT_MAX, because a score that overflowed is still visible. NaN stays NaN.
  __device__ static float not_lowest(float s) { return s == -INFINITY ? -FLT_MAX : s; }

  static constexpr int kPanel = 64;  // columns of one 16-bit tile in shared memory
  static constexpr int kPanelElements = kBlock * kPanel;
  static constexpr int kSteps = kPanel / 16;  // mma instructions (k = 16) per panel

  __host__ __device__ static constexpr int panels_of(int width) {
    return (width + kPanel - 1) / kPanel;
  }
  /// Returns the floats of shared memory for x_smem and y_smem, or for q1, k1, q2 and k2 as 16-bit
  /// panels, which share that memory.
  __host__ __device__ static constexpr int tile_floats(int width) {
    const int floats = 2 * kBlock * pitch_of(width);
    const int panels = 4 * panels_of(width) * kPanelElements / 2;
    return sizeof(T) == 2 && panels > floats ? panels : floats;
  }

  __device__ void dots(bool keys_own, const Rows<const T>& queries, const Rows<const T>& keys,
                       int h, int m0, int n0, Scores& s) const {
    __syncthreads();  // all threads have read the previous tiles
    load_queries(keys_own ? y_smem : x_smem, queries, h, m0);
    load_keys(keys_own ? x_smem : y_smem, keys, in.shape.kv_head(h), n0);
    __syncthreads();  // all threads have written both tiles
    dot_rows(s, x_smem, y_smem, width, pitch);
  }

  /// Computes the products of both maps with mma.sync, to s1_smem and s2_smem.
  __device__ void matrix_products(bool keys_own, int h, int m0, int n0) const {
    const int tensor = panels_of(width) * kPanelElements, g = in.shape.kv_head(h);
    T* const tiles = reinterpret_cast<T*>(smem);  // q1, k1, q2, k2
    __syncthreads();                              // all threads have read the previous tiles
    load_panels(tiles, in.q1.at(b, seq.q_begin + m0, h), in.q1.seq_stride, 0, seq.seq_q - m0,
                in.q_aligned);
    load_panels(tiles + tensor, in.k1.at(b, seq.k_begin + n0, g), in.k1.seq_stride,
                seq.first_key - n0, seq.end_key - n0, in.k_aligned);
    load_panels(tiles + 2 * tensor, in.q2.at(b, seq.q_begin + m0, h), in.q2.seq_stride, 0,
                seq.seq_q - m0, in.q_aligned);
    load_panels(tiles + 3 * tensor, in.k2.at(b, seq.k_begin + n0, g), in.k2.seq_stride,
                seq.first_key - n0, seq.end_key - n0, in.k_aligned);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();  // all threads' copies have arrived
    for (int map = 0; map < 2; ++map) {
      const T* const q = tiles + 2 * map * tensor;
      const T* const k = q + tensor;
      warp_product(keys_own ? k : q, keys_own ? q : k, map == 0 ? s1_smem : s2_smem);
    }
    __syncthreads();  // all warps have written their products
  }

  __device__ void load_panels(T* tile, const T* row0, int64_t stride, int begin, int end,
                              bool aligned) const {
    for (int p = 0; p < panels_of(width); ++p) {
      sm80::load_tile<kBlock, kPanel, kThreads>(
          tile + p * kPanelElements,
          sm80::TileSource<T>{row0 + p * kPanel, stride, begin, end, width - p * kPanel, aligned});
    }
  }

  /// Computes this warp's 16 x 8 part of x y^T.
  __device__ void warp_product(const T* x, const T* y, float* products) const {
    using Layout = sm80::TileLayout<kPanel>;
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const int row = warp / 4 * 16, column = warp % 4 * 8;
    float c[4] = {};
    for (int p = 0; p < panels_of(width); ++p) {
      const uint32_t x_panel = ptx::smem_address(x + p * kPanelElements);
      const uint32_t y_panel = ptx::smem_address(y + p * kPanelElements);
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t b_reg[4];  // B operands of two steps
        ptx::load_matrix_x4(b_reg, y_panel + Layout::offset(column + lane % 8, k * 2 + lane / 8));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a_reg[4];
          ptx::load_matrix_x4(a_reg,
                              x_panel + Layout::offset(row + lane % 16, (k + i) * 2, lane / 16));
          ptx::mma_m16n8k16<T>(c, a_reg, b_reg[2 * i], b_reg[2 * i + 1]);
        }
      }
    }
    float* const to = products + (row + lane / 4) * kScorePitch + column + lane % 4 * 2;
    to[0] = c[0], to[1] = c[1];
    to[8 * kScorePitch] = c[2], to[8 * kScorePitch + 1] = c[3];
  }

  __device__ void load_scores(const float* tile, Scores& s) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) s[i][j] = tile[(at.ty + 16 * i) * kScorePitch + at.tx + 16 * j];
    }
  }
};

}  // namespace diffattn::cuda::simt
