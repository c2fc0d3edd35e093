// SPDX-License-Identifier: Apache-2.0
//
// Products of float matrices by tf32 matrix instructions. A float x is big + small, 11 bits each;
//
//   x y = small big + big small + big big                    (small small is below 2^-24 of it)
//
// so three instructions make one product of almost float's precision. The instruction cuts sums
// off instead of rounding them, which adds up in one direction over a long sum: sums of 16 or 32
// products start at 0, and are then added in float.
//
// What is not finite, or too large, becomes NaN when it is split, whatever the true result is.
// Kernels look for that at their end and then run once more, carefully: products that came out NaN
// are made again by themselves (`again_dots`), and what cannot be split is left out of matrices and
// added only to the rows that have a weight for it (`add_unsplit`). Rows that see nothing of it get
// the same bits as without it. Weights of the backward that cannot be split, ds beyond 2^114, stay
// NaN, in their own row only.
#pragma once

#include <cstdint>

#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/mma_tf32.cuh"

namespace diffattn::cuda::tf32 {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kOwnRows = 16;  // of a warp
inline constexpr int kBlockRows = kWarps * kOwnRows;
inline constexpr int kColumns = 32;  // the other side of a tile of scores
inline constexpr int kColumns8 = kColumns / 8;

/// Floats between rows of a tile of kWidth columns: 8 rows at 16 bytes each, and 4 pairs of rows
/// at 8 x 16 bytes, hit different banks.
template <int kWidth>
inline constexpr int kPitch = kWidth + 4;

/// May rows of floats be read and written 16 bytes at a time?
template <class U>
bool has_rows_of_4(const View<U>& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.batch_stride % 4 == 0 &&
         view.seq_stride % 4 == 0 && view.head_stride % 4 == 0;
}

/// May these kernels run on the current device, with so much shared memory for a block? Products of
/// two parts each lose one or two of float32's last bits. Scores of many terms lose as many anyway;
/// those of a few, where rows are peaked, would be worse than plain float32.
inline bool takes(const Problem& problem, size_t smem_bytes) {
  constexpr int kAmpere = 80, kFewestTerms = 16;
  return problem.dtype == Dtype::kFloat32 && problem.head_dim >= kFewestTerms &&
         usable_capability() >= kAmpere && max_smem_bytes(problem) >= static_cast<int>(smem_bytes);
}

/// Rows of a tensor that a tile is filled from; rows outside [begin, end) and columns from `width`
/// on become 0 and are not read.
struct TileSource {
  const float* row0;
  int64_t stride;
  int begin, end;
  int width;
  bool aligned;  // 16-byte loads are allowed
};

/// Which (batch entry, head, tile) a block computes. Tiles of the same number of all heads are
/// neighbours, the ones that have most to do in a causal problem first: what is left at the end is
/// short. With `from_last` those are the last tiles.
__device__ inline BlockPlace place_of(int64_t block, int batch, int heads, int tiles,
                                      bool from_last) {
  BlockPlace place(block % (batch * heads), heads, 1);
  const int tile = static_cast<int>(block / (batch * heads));
  place.tile = from_last ? tiles - 1 - tile : tile;
  return place;
}

/// What a block works on, in shared memory: read there whenever it is needed, since the compiler
/// would keep all that follows from it in registers, which are for sums.
struct BlockFacts {
  Sequence seq;
  int b, h;   // h: of a pass over keys the kv head
  int kv_h;   // of a pass over queries the kv head
  int row;    // the first of the block's rows
  int again;  // not 0: a result was not finite

  __device__ void set(const Shape& shape, const BlockPlace& place, int rows) {
    if (threadIdx.x == 0) {
      seq = shape.sequence(place.b);
      b = place.b, h = place.h, kv_h = shape.kv_head(h), row = place.tile * rows, again = 0;
    }
    __syncthreads();  // all of it is there
  }
};

/// Fills tile [kRows, kPitch<kWidth>] with all threads of the block, asynchronously.
template <int kRows, int kWidth>
__device__ inline void load_tile(float* tile, const TileSource& source) {
  constexpr int kStep = kWidth / 4;  // threads a row
  const uint32_t smem = ptx::smem_address(tile);
#pragma unroll 1
  for (int i = ptx::reread_thread(); i < kRows * kStep; i += kThreads) {
    const int row = i / kStep, column = i % kStep * 4;
    const bool inside = row >= source.begin && row < source.end;
    const float* const from = source.row0 + row * source.stride + column;
    const int bytes = inside ? max(0, min(16, (source.width - column) * 4)) : 0;
    const uint32_t to = smem + (row * kPitch<kWidth> + column) * 4;
    if (source.aligned) {
      ptx::copy_16_partly(to, bytes > 0 ? from : source.row0, bytes);
    } else {
      for (int e = 0; e < 4; ++e) {
        ptx::copy_4_or_zero(to + 4 * e, 4 * e < bytes ? from + e : source.row0, 4 * e < bytes);
      }
    }
  }
}

/// kCount floats in two parts.
template <int kCount>
struct Split {
  uint32_t big[kCount], small[kCount];

  /// x (1 + 2^13) - x 2^13 keeps the upper 11 bits of x, rounded.
  __device__ void set(int i, float x) {
    const float high = fmaf(x, -8192.0f, fmaf(x, 8192.0f, x));
    big[i] = __float_as_uint(high);
    small[i] = __float_as_uint(x - high);
  }
};

/// Can x be split? No NaN can.
__device__ inline bool splits(float x) { return fabsf(x) < 0x1p114f; }

/// c += a b, the small parts first: they lose least while c is small.
__device__ inline void multiply(float (&c)[4], const Split<4>& a, const Split<2>& b) {
  ptx::mma_m16n8k8_tf32(c, a.small, b.big);
  ptx::mma_m16n8k8_tf32(c, a.big, b.small);
  ptx::mma_m16n8k8_tf32(c, a.big, b.big);
}

template <int kCount>
__device__ inline void clear(float (&x)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
}
template <int kCount>
__device__ inline void add(float (&x)[kCount][4], const float (&y)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[i][e] += y[i][e];
  }
}

/// s = x y^T of this warp's 16 rows of x and all rows of y, `width` columns each, and zeros after
/// them. `x` and `y`: where this lane loads, see row_address and column_address. What the small
/// parts add has sums of its own, of which nothing is lost that counts; sums of big parts start
/// anew every kChain steps. With kTransposed s has the same bits as y x^T without.
template <int kWidth, bool kTransposed = false, int kN8>
__device__ inline void dot_rows(float (&s)[kN8][4], uint32_t x, uint32_t y, int width) {
  constexpr int kChain = 2;
  float small[kN8][4] = {};
  clear(s);
#pragma unroll 1
  for (int k0 = 0; k0 < (width + 7) / 8; k0 += kChain) {
    float big[kN8][4] = {};
#pragma unroll
    for (int k = k0; k < k0 + kChain; ++k) {
      Split<4> a;
      uint32_t words[4];
      ptx::load_matrix_x4(words, x + 32 * k);
#pragma unroll
      for (int i = 0; i < 4; ++i) a.set(i, __uint_as_float(words[i]));
#pragma unroll
      for (int j = 0; j < kN8; ++j) {
        if (j % 2 == 0) ptx::load_matrix_x4(words, y + 32 * k + j * 32 * kPitch<kWidth>);
        Split<2> b;
        b.set(0, __uint_as_float(words[j % 2 * 2]));
        b.set(1, __uint_as_float(words[j % 2 * 2 + 1]));
        if (kTransposed) ptx::mma_m16n8k8_tf32(small[j], a.big, b.small);
        ptx::mma_m16n8k8_tf32(small[j], a.small, b.big);
        if (!kTransposed) ptx::mma_m16n8k8_tf32(small[j], a.big, b.small);
        ptx::mma_m16n8k8_tf32(big[j], a.big, b.big);
      }
    }
    add(s, big);
  }
  add(s, small);
}

/// Entries of s = x y^T that came out NaN, made again; x, y: the rows that dot_rows took.
template <int kWidth, int kN8>
__device__ inline void again_dots(float (&s)[kN8][4], const float* x, const float* y, int width) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kN8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (s[j][e] == s[j][e]) continue;
      const float* const a = x + (lane / 4 + e / 2 * 8) * kPitch<kWidth>;
      const float* const b = y + (8 * j + lane % 4 * 2 + e % 2) * kPitch<kWidth>;
      float sum = 0.0f;
#pragma unroll 1
      for (int d = 0; d < width; ++d) sum = fmaf(a[d], b[d], sum);
      s[j][e] = sum;
    }
  }
}

/// Where this lane loads the 16 rows of its warp from, and the 16 first rows of the other side.
template <int kWidth>
__device__ inline uint32_t row_address(const float* rows) {
  const int lane = threadIdx.x % 32;
  return ptx::smem_address(rows + lane % 16 * kPitch<kWidth> + lane / 16 * 4);
}
template <int kWidth>
__device__ inline uint32_t column_address(const float* tile) {
  const int lane = threadIdx.x % 32;
  return ptx::smem_address(tile + (lane / 16 * 8 + lane % 8) * kPitch<kWidth> + lane / 8 % 2 * 4);
}

__device__ inline void load_floats(float (&x)[4], const float* from) {
  const float4 y = *reinterpret_cast<const float4*>(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}
__device__ inline void load_floats(float (&x)[2], const float* from) {
  const float2 y = *reinterpret_cast<const float2*>(from);
  x[0] = y.x, x[1] = y.y;
}

/// Fragments of y that add_weighted loads at once; with two maps fewer, since all have sums.
template <int kMaps>
inline constexpr int kLoaded = 4 / kMaps;

/// Zeros for what cannot be split, by all threads of the block.
template <int kRows, int kWidth>
__device__ inline void clear_unsplit(float* tile) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kPitch<kWidth>; i += kThreads) {
    if (!splits(tile[i])) tile[i] = 0.0f;
  }
}

/// acc += p y where y cannot be split, as add_weighted has it. Zeros of p stand for "may not see".
template <int kMaps, int kWidth, int kRowPitch = kPitch<kWidth>, int kN8>
__device__ inline void add_unsplit(float (&acc)[kMaps][kWidth / 8][4],
                                   const float (&p)[kMaps][kN8][4], const float* y, int width) {
  constexpr int kL = kLoaded<kMaps>;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int r = 0; r < 8 * kN8; ++r) {
    const float* const row = y + r * kRowPitch;
    bool all = true;  // of the row can be split
    for (int column = lane; column < min(kWidth, width); column += 32) {
      all = all && splits(row[column]);
    }
    if (__all_sync(0xffffffffu, all)) continue;
    float weight[kMaps][2] = {};
#pragma unroll
    for (int map = 0; map < kMaps; ++map) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int k = 0; k < kN8; ++k) {
          const int from = lane / 4 * 4 + r % 8 / 2;
          const float even = __shfl_sync(0xffffffffu, p[map][k][2 * i], from);
          const float odd = __shfl_sync(0xffffffffu, p[map][k][2 * i + 1], from);
          if (k == r / 8) weight[map][i] = r % 2 == 0 ? even : odd;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kWidth / 8; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = kL * (c / kL * 8 + lane % 4 * 2 + e % 2) + c % kL;
        const float x = row[column];
        if (column >= width || splits(x)) continue;
#pragma unroll
        for (int map = 0; map < kMaps; ++map) {
          if (weight[map][e / 2] != 0.0f) acc[map][c][e] += weight[map][e / 2] * x;
        }
      }
    }
  }
}

/// acc += p y, p [16, 8 kN8] weights as dot_rows leaves them, y [8 kN8, kWidth], for kMaps of
/// p at once. Row t of a fragment of y is row 2t of 8 and row t + 4 row 2t + 1, so that p needs no
/// exchange; with L = kLoaded, column g of fragment j is column L g + j of 8 L, so that y is loaded
/// L floats at a time: acc[..][L c + j][2 i + e] belongs to row g + 8 i and
/// column L (8 c + 2 t + e) + j. From column `width` on y is 0.
template <int kMaps, int kWidth, int kRowPitch = kPitch<kWidth>, int kN8>
__device__ inline void add_weighted(float (&acc)[kMaps][kWidth / 8][4],
                                    const float (&p)[kMaps][kN8][4], const float* y, int width) {
  constexpr int kL = kLoaded<kMaps>;
  const int lane = threadIdx.x % 32;
  const float* const from = y + lane % 4 * 2 * kRowPitch + lane / 4 * kL;
#pragma unroll
  for (int c = 0; c < kWidth / (8 * kL); ++c) {
    if (8 * kL * c >= width) break;
    float part[kMaps][kL][4] = {};
#pragma unroll
    for (int k = 0; k < kN8; ++k) {
      float y_reg[2][kL];
      load_floats(y_reg[0], from + k * 8 * kRowPitch + 8 * kL * c);
      load_floats(y_reg[1], from + (k * 8 + 1) * kRowPitch + 8 * kL * c);
      Split<2> b[kL];
#pragma unroll
      for (int j = 0; j < kL; ++j) b[j].set(0, y_reg[0][j]), b[j].set(1, y_reg[1][j]);
#pragma unroll
      for (int map = 0; map < kMaps; ++map) {
        const float(&weights)[4] = p[map][k];
        Split<4> a;
        a.set(0, weights[0]), a.set(1, weights[2]), a.set(2, weights[1]), a.set(3, weights[3]);
#pragma unroll
        for (int j = 0; j < kL; ++j) multiply(part[map][j], a, b[j]);
      }
    }
#pragma unroll
    for (int map = 0; map < kMaps; ++map) {
#pragma unroll
      for (int j = 0; j < kL; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[map][kL * c + j][e] += part[map][j][e];
      }
    }
  }
}

}  // namespace diffattn::cuda::tf32
