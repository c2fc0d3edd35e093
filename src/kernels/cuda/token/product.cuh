// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step (mma.sync): y [rows, outputs] = a [rows, in] weight^T. With few
// rows the time goes into reading the weights and into the latency of a chain of small kernels.
//
// A block computes kN tiles of 8 outputs for 16 kM rows. Its warps split the inner dimension:
//
//   (1) load the first weights into registers, before the previous kernel has ended
//   (2) wait for the previous kernel; load a, multiply: acc [16 kM, 8 kN] per warp
//   (3) sum the warps' accumulators through shared memory
//   (4) each thread finishes pairs of outputs g and g + 4 of a tile: epilogue.cuh
//
// An inner dimension can be summed in any order, as long as a and the weights agree. So lane
// (g, t) loads elements 8 t .. 8 t + 7 of each block of 32, which is one 16-byte load per row, and
// uses them as the four pairs of two mma fragments.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/token/arguments.cuh"
#include "kernels/cuda/token/epilogue.cuh"

namespace diffattn::cuda::token {

/// kHalves: halves of 8 rows. kN: tiles of 8 outputs.
template <int kHalves_, int kN_>
struct ProductConfig {
  static constexpr int kHalves = kHalves_, kN = kN_;
  static constexpr int kM = (kHalves + 1) / 2;  // fragments of 16 rows
  static constexpr int kRows = 8 * kHalves;
  static constexpr bool kFew = kHalves <= 2;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  /// Blocks of 32 inner elements whose weights a warp loads ahead: 96 KiB in all, so that the
  /// blocks of two kernels fit on an SM of an H200.
  static constexpr int kAhead = 24 / kN;
  static constexpr int ring_bytes(int in) {
    const int steps = (in / 32 + kWarps - 1) / kWarps;
    return (steps < kAhead ? steps : kAhead) * kN * kThreads * 16;
  }
  /// Blocks of 32 inner elements of `a` in registers.
  static constexpr int kADepth = kHalves == 1   ? (kN == 1 ? 8 : 4)
                                 : kHalves == 2 ? 3
                                 : kHalves == 4 ? 2
                                                : 1;
  static constexpr int kPitch = kN == 1 ? 8 : 8 * kN + 8;  // floats; spreads rows over the banks

  /// The warps' sums reuse the ring. They leave out rows that the batch does not have.
  static constexpr int sums_bytes(int rows) {
    return kWarps * kPitch * (rows < kRows ? rows : kRows) * 4;
  }
  static constexpr int smem_bytes(int rows, int in) {
    const int sums = sums_bytes(rows), ring = ring_bytes(in);
    return (sums > ring ? sums : ring) + kRows * 4;
  }
};

template <class T, class Config>
struct Product {
  static constexpr int kM = Config::kM, kN = Config::kN, kHalves = Config::kHalves;
  static constexpr int kAhead = Config::kAhead, kADepth = Config::kADepth;
  static constexpr int kWarps = Config::kWarps;

  const ProductArguments<T>& args;
  char* smem;
  const int tile0, row0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int rows = min(Config::kRows, args.rows - row0);
  /// Blocks of 32 inner elements of this warp: warp, warp + kWarps, ...
  const int steps = max(0, (args.in / 32 - warp + kWarps - 1) / kWarps);

  float* const factors_smem = reinterpret_cast<float*>(smem);  // [kRows]
  uint4* const ring_smem = reinterpret_cast<uint4*>(smem + Config::kRows * 4) + threadIdx.x;
  float* const sums_smem = factors_smem + Config::kRows;  // [kWarps, rows, kPitch]

  uint4 a_reg[kADepth][kHalves];  // row g of each half
  float acc[kM][kN][4] = {};

  __device__ void run() {
    const T* weights[kN];
#pragma unroll
    for (int n = 0; n < kN; ++n) weights[n] = args.weight_row(tile0 + n, g) + 8 * t + warp * 32;
    const T* const a = args.a + int64_t{row0} * args.in + 8 * t + warp * 32;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_weights(i, i, weights);  // (1)
    const Place place(*this, 0);
    // With few rows registers are left to prepare the epilogue before the wait.
    [[maybe_unused]] PairFinish<T> pair;
    if constexpr (Config::kFew) pair.prepare(args, row0 + place.row, tile0 + place.n, place.pair);
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kADepth; ++i) load_a(i, i, a);
    if constexpr (Config::kFew) pair.load(args, row0 + place.row);
    row_factors();
    for (int step = 0, slot = 0; step < steps; step += kADepth) {  // (2)
#pragma unroll
      for (int i = 0; i < kADepth; ++i) {
        if (step + i >= steps) break;
        ptx::wait_copies<kAhead - 1>();
        multiply(i, slot);
        load_weights(slot, step + i + kAhead, weights);
        load_a(i, step + i + kADepth, a);
        slot = slot == kAhead - 1 ? 0 : slot + 1;
      }
    }
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have read their weights; the sums reuse the ring
    store_sums();
    __syncthreads();  // all warps have stored their sums
    if constexpr (Config::kFew) finish(place, pair);
#pragma unroll 1
    for (int first = Config::kFew ? Place::kRowsAtOnce : 0; first < rows;
         first += Place::kRowsAtOnce) {
      const Place next(*this, first);
      PairFinish<T> next_pair;
      next_pair.prepare(args, row0 + next.row, tile0 + next.n, next.pair);
      next_pair.load(args, row0 + next.row);
      finish(next, next_pair);
    }
  }

  /// Copies the weights of a step to a slot of this thread's ring, and commits the group of copies.
  /// Only this thread reads them.
  __device__ void load_weights(int slot, int step, const T* const (&from)[kN]) const {
    if (step < steps) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        ptx::copy_16_or_zero(ptx::smem_address(ring_smem + (slot * kN + n) * Config::kThreads),
                             from[n] + step * (kWarps * 32), true);
      }
    }
    ptx::commit_copies();
  }

  __device__ void load_a(int i, int step, const T* from) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + g;
      a_reg[i][half] = {};
      if (row < rows && step < steps) {
        a_reg[i][half] = __ldcg(
            reinterpret_cast<const uint4*>(from + int64_t{row} * args.in + step * (kWarps * 32)));
      }
    }
  }

  __device__ void multiply(int i, int slot) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint4 w = ring_smem[(slot * kN + n) * Config::kThreads];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint4 low = a_reg[i][2 * m];
        const uint4 high = kHalves == 1 ? uint4{} : a_reg[i][kHalves == 1 ? 0 : 2 * m + 1];
        ptx::mma_m16n8k16<T>(acc[m][n], {low.x, high.x, low.y, high.y}, w.x, w.y);
        ptx::mma_m16n8k16<T>(acc[m][n], {low.z, high.z, low.w, high.w}, w.z, w.w);
      }
    }
  }

  /// Computes 1 / RMS of each row from the sums of squares, or 1 without a norm.
  __device__ void row_factors() {
    for (int row = warp; row < rows; row += kWarps) {
      float sum = 0.0f;
      for (int part = lane; part < args.parts; part += 32) {
        sum += __ldcg(args.squares + int64_t{row0 + row} * Residual::kMaxParts + part);
      }
      for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      }
      const float mean = sum / static_cast<float>(args.in);
      if (lane == 0)
        factors_smem[row] = args.parts == 0 ? 1.0f : rsqrtf(mean + args.eps) / kScaled<T>;
    }
  }

  __device__ void store_sums() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + g;
      if (row >= rows) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float* const from = acc[half / 2][n] + half % 2 * 2;
        float* const to = sums_smem + (warp * rows + row) * Config::kPitch + n * 8 + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
      }
    }
  }

  /// The row and the pair of outputs that a thread finishes. A row's pairs belong to kLanes
  /// consecutive lanes, and the threads of a block finish kThreads / kLanes rows at once.
  struct Place {
    static constexpr int kLanes = kN == 1 ? 4 : kN == 2 ? 8 : kN <= 4 ? 16 : 32;
    static constexpr int kRowsAtOnce = Config::kThreads / kLanes;
    int row, n, pair;
    bool exists;

    __device__ Place(const Product& product, int first_row)
        : row(first_row + static_cast<int>(threadIdx.x) / kLanes),
          n(static_cast<int>(threadIdx.x) % kLanes / 4),
          pair(static_cast<int>(threadIdx.x) % 4),
          exists(row < product.rows && n < kN && product.tile0 + n < product.args.tiles) {
      row = min(row, product.rows - 1);
      n = exists ? n : 0;
    }
  };

  /// (3) and (4) for the rows from place.row on.
  __device__ void finish(const Place& place, PairFinish<T>& pair) const {
    float y[2] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* const from =
          sums_smem + (w * rows + place.row) * Config::kPitch + place.n * 8 + place.pair;
      y[0] += from[0], y[1] += from[4];
    }
    const int row = row0 + place.row;
    const float factor = factors_smem[place.row];
    float squares = place.exists ? pair.store(args, row, y[0] * factor, y[1] * factor) : 0.0f;
    if (args.epilogue != Epilogues::kAdd) return;
#pragma unroll
    for (int offset = Place::kLanes / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    if (place.exists && place.n == 0 && place.pair == 0) {
      args.residual.squares[int64_t{row} * Residual::kMaxParts + tile0 / kN] = squares;
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kFew&& Config::kN == 1 ? 2 : 1)
    product_kernel(const __grid_constant__ ProductArguments<T> args, int row_chunks) {
  extern __shared__ __align__(128) char product_smem[];
  // The next kernel may start at once: all it reads before its own wait are weights.
  ptx::launch_dependents();
  const int tile0 = static_cast<int>(blockIdx.x / row_chunks) * Config::kN;
  const int row0 = static_cast<int>(blockIdx.x % row_chunks) * Config::kRows;
  Product<T, Config>{args, product_smem, tile0, row0}.run();
}

}  // namespace diffattn::cuda::token
