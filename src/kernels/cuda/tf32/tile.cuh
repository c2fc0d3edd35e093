// SPDX-License-Identifier: Apache-2.0
//
// Float32 matrix products with tf32 mma instructions. A float is split into two tf32 numbers of 11
// bits, x = big + small, and three instructions give one product of almost float's precision:
//
//   x y = small big + big small + big big          the omitted small small is at most 2^-22 x y
//
// The tensor cores truncate their sums instead of rounding them, so the error of a long sum grows
// in one direction. Therefore each chain of mma instructions starts at 0 and sums 16 or 32
// products. A float addition then adds it to the accumulator.
//
// Values that cannot be split (infinities, NaN, numbers beyond 2^114) may get infinite or NaN
// parts, which make their products NaN. If a block's results are not finite, the block runs again
// with kCareful. Then `recompute_nan_dots` recomputes NaN scores by plain dot products.
// `clear_unsplit` removes such values from the tiles, and `add_unsplit` adds their products only to
// the rows that have a weight for them. Rows that do not see such values get the same bits as
// without them. In the backward, a ds beyond 2^114 still makes sums NaN, but only those of its own
// row.
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
inline constexpr int kOwnRows = 16;  // rows of a warp
inline constexpr int kBlockRows = kWarps * kOwnRows;
inline constexpr int kColumns = 32;  // columns of a tile of scores
inline constexpr int kColumns8 = kColumns / 8;

/// Floats from one row to the next in a tile of kWidth columns. The extra 4 floats shift adjacent
/// rows by 4 banks. The 8 rows of an ldmatrix, and the loads of add_weighted, then fall into
/// different banks.
template <int kWidth>
inline constexpr int kPitch = kWidth + 4;

/// True if every row of floats starts at a multiple of 16 bytes.
template <class U>
bool has_rows_of_4(const View<U>& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.batch_stride % 4 == 0 &&
         view.seq_stride % 4 == 0 && view.head_stride % 4 == 0;
}

/// True if these kernels support the problem on the current device with `smem_bytes` of shared
/// memory per block. Each product loses the last one or two bits of float32. A sum of many terms
/// loses as many by rounding anyway, but a sum of few terms (head_dim < 16) would be less accurate
/// than plain float32.
inline bool takes(const Problem& problem, size_t smem_bytes) {
  constexpr int kAmpere = 80, kFewestTerms = 16;
  return problem.dtype == Dtype::kFloat32 && problem.head_dim >= kFewestTerms &&
         usable_capability(problem) >= kAmpere &&
         max_smem_bytes(problem) >= static_cast<int>(smem_bytes);
}

/// The tensor rows that fill a tile. Loads write 0 to the tile outside rows [begin, end) and
/// columns [0, width), and do not read the tensor there.
struct TileSource {
  const float* row0;  // address of tile row 0
  int64_t stride;     // floats from one row to the next
  int begin, end;     // tile rows to read
  int width;          // tile columns to read
  bool aligned;       // rows start at multiples of 16 bytes
};

/// Returns the (batch entry, head, tile) of a block. Consecutive blocks compute the same tile of
/// all heads. Under a causal mask, the tiles with most work should start first, so that short ones
/// fill the tail. `from_last`: these are the last tiles, so count down.
__device__ inline WorkTile work_tile_of(int64_t block, int batch, int heads, int tiles,
                                        bool from_last) {
  WorkTile work(block % (batch * heads), heads, 1);
  const int tile = static_cast<int>(block / (batch * heads));
  work.tile = from_last ? tiles - 1 - tile : tile;
  return work;
}

/// A block's work item. It lives in shared memory, so that the compiler does not keep values
/// derived from it in registers, which the accumulators need.
struct WorkItem {
  Sequence seq;
  int b, h;        // batch entry and head; the kv head in a pass over keys
  int kv_h;        // kv head of head h in a pass over queries
  int row;         // first row of the block
  int non_finite;  // not 0 if a result was not finite: the block must run again with kCareful

  __device__ void set(const Shape& shape, const WorkTile& work, int rows) {
    if (threadIdx.x == 0) {
      seq = shape.sequence(work.b);
      b = work.b, h = work.h, kv_h = shape.kv_head(h), row = work.tile * rows, non_finite = 0;
    }
    __syncthreads();  // thread 0 has set the fields
  }
};

/// Fills tile [kRows, kPitch<kWidth>] with all threads of the block by cp.async.
template <int kRows, int kWidth>
__device__ inline void load_tile(float* tile, const TileSource& source) {
  constexpr int kStep = kWidth / 4;  // threads per row
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

/// kCount floats, each split into two tf32 numbers.
template <int kCount>
struct Split {
  uint32_t big[kCount], small[kCount];

  /// Splits x: x (1 + 2^13) - x 2^13 rounds x to its upper 11 bits (Veltkamp).
  __device__ void set(int i, float x) {
    const float high = fmaf(x, -8192.0f, fmaf(x, 8192.0f, x));
    big[i] = __float_as_uint(high);
    small[i] = __float_as_uint(x - high);
  }
};

/// True if x can be split without overflow; false for a NaN.
__device__ inline bool splits(float x) { return fabsf(x) < 0x1p114f; }

/// Computes c += a b. Adds the small products first: c is then still small, and truncation of the
/// sum loses less of them.
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

/// Computes s = x y^T for this warp's 16 rows of x and 8 kN8 rows of y, over `width` columns. The
/// tiles are 0 from column `width` on. `x` and `y` are this lane's addresses (see row_address and
/// column_address). The small products have their own accumulator, where truncation does not
/// matter. The sums of the big products start at 0 every kChain steps. kTransposed: gives the same
/// bits as a call with x and y swapped and without kTransposed.
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

/// Recomputes the NaN entries of s = x y^T by plain dot products. x and y are the tiles that
/// dot_rows has read.
template <int kWidth, int kN8>
__device__ inline void recompute_nan_dots(float (&s)[kN8][4], const float* x, const float* y,
                                          int width) {
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

/// Return this lane's ldmatrix address for the 16 rows of its warp (operand A), and for the first
/// 16 rows of the other tile (operand B).
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

/// Fragments of y that add_weighted loads at once. Two maps load fewer, because each fragment needs
/// an accumulator per map.
template <int kMaps>
inline constexpr int kLoaded = 4 / kMaps;

/// Sets the tile's values that cannot be split to 0, with all threads of the block.
template <int kRows, int kWidth>
__device__ inline void clear_unsplit(float* tile) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kPitch<kWidth>; i += kThreads) {
    if (!splits(tile[i])) tile[i] = 0.0f;
  }
}

/// Computes acc += p y over the entries of y that cannot be split, in the layout of add_weighted.
/// Skips zeros of p, because p is 0 where a column is hidden from a row.
template <int kMaps, int kWidth, int kRowPitch = kPitch<kWidth>, int kN8>
__device__ inline void add_unsplit(float (&acc)[kMaps][kWidth / 8][4],
                                   const float (&p)[kMaps][kN8][4], const float* y, int width) {
  constexpr int kL = kLoaded<kMaps>;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int r = 0; r < 8 * kN8; ++r) {
    const float* const row = y + r * kRowPitch;
    bool all = true;  // all values of the row can be split
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

/// Computes acc += p y for kMaps maps at once, with p [16, 8 kN8] in the layout of dot_rows and y
/// [8 kN8, kWidth]. y is 0 from column `width` on. Let g = lane / 4, t = lane % 4 and L = kLoaded.
///
/// Both index orders are permuted. Rows t and t + 4 of a B fragment take rows 2t and 2t + 1 of each
/// 8 rows of y, so that C fragments of p serve as A operands without an exchange. Column g of
/// fragment j takes column L g + j of each 8 L, so that a lane loads L adjacent floats of y. Hence
/// acc[..][L c + j][2 i + e] is the sum for row g + 8 i and column L (8 c + 2 t + e) + j.
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
