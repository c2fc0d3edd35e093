// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step (mma.sync): y [rows, outputs] = a [rows, in] weight^T. With few
// rows the time goes into reading the weights and into the latency of a chain of small kernels.
//
// A block computes kN tiles of 8 outputs for 16 kM rows. Its warps split the inner dimension:
//
//   (1) load the first weights into shared memory, before the previous kernel has ended
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
  static constexpr int kPartTiles = kN;         // tiles of one sum of squares
  static constexpr int kM = (kHalves + 1) / 2;  // fragments of 16 rows
  static constexpr int kRows = 8 * kHalves;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  /// Blocks of 32 inner elements that a warp loads ahead, of the weights and of `a`. The blocks of
  /// two kernels fit on an SM of an H200. An odd kAAhead spreads the rows of `a` over the banks.
  static constexpr int kAhead = kN == 1 ? 12 : 24 / kN;
  static constexpr int kAAhead = kHalves == 1   ? (kN == 1   ? 11
                                                   : kN == 3 ? 7
                                                             : 5)
                                 : kHalves == 2 ? 5
                                                : (kN == 6 ? 2 : 3);
  static constexpr int kBothAhead = kAhead < kAAhead ? kAhead : kAAhead;
  /// Tiles of weights that a warp loads at once before the previous kernel has ended.
  static constexpr int kPaced = kHalves <= 2 ? 3 : kN * kAhead;
  static constexpr int kPitch = kN == 1 ? 8 : 8 * kN + 8;  // floats; spreads rows over the banks

  /// The weights' ring: 16 bytes per thread, tile and step.
  static constexpr int weights_bytes(int in) {
    const int steps = (in / 32 + kWarps - 1) / kWarps;
    return (steps < kAhead ? steps : kAhead) * kN * kThreads * 16;
  }
  /// The warps' sums reuse the rings. Sums and the ring of `a` leave out rows that the batch does
  /// not have.
  static constexpr int smem_bytes(int all_rows, int in) {
    const int rows = all_rows < kRows ? all_rows : kRows;
    const int rings = weights_bytes(in) + kAAhead * kWarps * rows * 64;
    const int sums = kWarps * kPitch * rows * 4;
    return kRows * 20 + kN * 64 + (sums > rings ? sums : rings);
  }
};

template <class T, class Config>
struct Product {
  static constexpr int kM = Config::kM, kN = Config::kN, kHalves = Config::kHalves;
  static constexpr int kAhead = Config::kAhead, kAAhead = Config::kAAhead;
  static constexpr int kWarps = Config::kWarps;

  const ProductArguments<T>& args;
  char* smem;
  const int tile0, row0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int rows = min(Config::kRows, args.rows - row0);
  /// Blocks of 32 inner elements of this warp: warp, warp + kWarps, ...
  const int steps = max(0, (args.in / 32 - warp + kWarps - 1) / kWarps);

  RowPlace<T>* const places_smem = reinterpret_cast<RowPlace<T>*>(smem);  // [kRows]
  const T** const matrix_smem = reinterpret_cast<const T**>(places_smem + Config::kRows);  // [8 kN]
  float* const factors_smem = reinterpret_cast<float*>(matrix_smem + 8 * kN);  // [kRows]
  float* const sums_smem = factors_smem + Config::kRows;  // [kWarps, rows, kPitch]
  // The rings. Each thread reads only what it copied itself.
  uint4* const a_smem =  // [kWarps, rows, kAAhead, 4]
      reinterpret_cast<uint4*>(sums_smem) + (warp * rows + g) * kAAhead * 4 + t;
  uint4* const weights_smem =  // [kAhead, kN, kThreads]
      reinterpret_cast<uint4*>(sums_smem) + kWarps * rows * kAAhead * 4 + threadIdx.x;

  float acc[kM][kN][4] = {};

  __device__ void run() {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 8 * kN) matrix_smem[thread] = args.weight_row(tile0 + thread / 8, thread % 8);
    if (args.epilogue == Epilogues::kHeads && thread < rows) {
      places_smem[thread] = RowPlace<T>(args, row0 + thread);
    }
    __syncthreads();  // the weight rows and the places are stored
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) load_first_weights(i);  // (1)
    ptx::commit_copies();
    const T* const a = args.a + int64_t{row0 + g} * args.in + 8 * t + warp * 32;
    const Place place(*this);
    const int row = min(place.row, rows - 1);
    const PairFinish<T> pair(args, args.epilogue, tile0 + place.n, place.pair);
    RowInputs<T> in;
    pair.load_early(in, args, args.epilogue, row0 + row, places_smem[row]);
    // From here on every instruction delays the next kernel.
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kAAhead; ++i) load_a(i, i, a);
    ptx::commit_copies();
    pair.load_late(in, args, args.epilogue, row0 + row);
    store_row_factors<Config::kRows, Config::kThreads>(args, row0, rows, factors_smem);
    multiply_all(a);  // (2)
    __syncthreads();  // all warps have read their rings; the sums reuse them
    store_sums();
    __syncthreads();  // all warps have stored their sums
    with_epilogue(args.epilogue, [&](auto epilogue) { finish<epilogue.value>(place, pair, in); });
  }

  __device__ void multiply_all(const T* a) {
    int step = 0, slot = 0, a_slot = 0;
    const auto next = [&] {
      ++step;
      slot = slot == kAhead - 1 ? 0 : slot + 1;
      a_slot = a_slot == kAAhead - 1 ? 0 : a_slot + 1;
    };
    ptx::wait_copies<0>();
#pragma unroll 1
    while (step + Config::kBothAhead < steps) {  // while something is left to load
      ptx::wait_copies<Config::kBothAhead - 1>();
      multiply(slot, a_slot);
      load_weights(slot, step + kAhead);
      load_a(a_slot, step + kAAhead, a);
      ptx::commit_copies();
      next();
    }
    ptx::wait_copies<0>();
#pragma unroll(kHalves == 1 && kN < 6 ? 4 : 1)
    while (step < steps) {
      multiply(slot, a_slot);
      next();
    }
  }

  /// Copies the weights of a step of the first kAhead. Waits after every kPaced tiles: more copies
  /// in flight would delay what the kernels before this one read. Most blocks of the head start
  /// later, when no kernel is left to delay.
  __device__ void load_first_weights(int step) const {
    if (step >= steps) return;
    const bool paced = args.epilogue != Epilogues::kLogits;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      load_weight(step, step, n);
      if (paced && (step * kN + n) % Config::kPaced == Config::kPaced - 1) {
        ptx::commit_copies();
        ptx::wait_copies<0>();
      }
    }
  }

  /// Copies the weights of a step to a slot of the ring.
  __device__ void load_weights(int slot, int step) const {
    if (step >= steps) return;
#pragma unroll
    for (int n = 0; n < kN; ++n) load_weight(slot, step, n);
  }

  __device__ void load_weight(int slot, int step, int n) const {
    ptx::copy_16_or_zero(ptx::smem_address(weights_smem + (slot * kN + n) * Config::kThreads),
                         matrix_smem[n * 8 + g] + (step * kWarps + warp) * 32 + 8 * t, true);
  }

  /// Copies the rows of `a` of a step to a slot of the ring. `from` is row g.
  __device__ void load_a(int slot, int step, const T* from) const {
    if (step >= steps) return;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (half * 8 + g >= rows) break;
      ptx::copy_16_or_zero(ptx::smem_address(a_smem + (half * 8 * kAAhead + slot) * 4),
                           from + int64_t{half * 8} * args.in + step * (kWarps * 32), true);
    }
  }

  __device__ void multiply(int slot, int a_slot) {
    uint4 a_reg[kHalves];  // row g of each half
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      a_reg[half] = {};
      if (half * 8 + g < rows) a_reg[half] = a_smem[(half * 8 * kAAhead + a_slot) * 4];
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint4 w = weights_smem[(slot * kN + n) * Config::kThreads];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint4 low = a_reg[2 * m];
        const uint4 high = kHalves == 1 ? uint4{} : a_reg[kHalves == 1 ? 0 : 2 * m + 1];
        ptx::mma_m16n8k16<T>(acc[m][n], {low.x, high.x, low.y, high.y}, w.x, w.y);
        ptx::mma_m16n8k16<T>(acc[m][n], {low.z, high.z, low.w, high.w}, w.z, w.w);
      }
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

  /// The pair of outputs that a thread finishes, and its first row. A row's pairs belong to kLanes
  /// consecutive lanes, and the threads of a block finish kRowsAtOnce rows at once.
  struct Place {
    static constexpr int kLanes = kN == 1 ? 4 : kN == 2 ? 8 : kN <= 4 ? 16 : 32;
    static constexpr int kRowsAtOnce = Config::kThreads / kLanes;
    const int row = static_cast<int>(threadIdx.x) / kLanes;
    const int pair = static_cast<int>(threadIdx.x) % 4;
    int n = static_cast<int>(threadIdx.x) % kLanes / 4;
    const bool exists;

    __device__ explicit Place(const Product& product)
        : exists(n < kN && product.tile0 + n < product.args.tiles) {
      n = exists ? n : 0;
    }
  };

  /// (3) and (4). `in` belongs to the thread's first row.
  template <Epilogues kEpilogue>
  __device__ void finish(const Place& place, const PairFinish<T>& pair, RowInputs<T> in) const {
#pragma unroll 1
    for (int i = 0; i < rows; i += Place::kRowsAtOnce) {
      const int row = min(i + place.row, rows - 1);
      const bool exists = place.exists && i + place.row < rows;
      if (i > 0) {
        pair.load_early(in, args, kEpilogue, row0 + row, places_smem[row]);
        pair.load_late(in, args, kEpilogue, row0 + row);
      }
      float y[2] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float* const from =
            sums_smem + (w * rows + row) * Config::kPitch + place.n * 8 + place.pair;
        y[0] += from[0], y[1] += from[4];
      }
      const float factor = factors_smem[row];
      float squares = 0.0f;
      if (exists) {
        squares = pair.store(args, kEpilogue, row0 + row, in, y[0] * factor, y[1] * factor);
      }
      if constexpr (kEpilogue == Epilogues::kAdd) {
#pragma unroll
        for (int offset = Place::kLanes / 2; offset > 0; offset /= 2) {
          squares += __shfl_xor_sync(0xffffffffu, squares, offset);
        }
        if (exists && place.n == 0 && place.pair == 0) {
          args.residual.squares[int64_t{row0 + row} * Residual::kMaxParts + tile0 / kN] = squares;
        }
      }
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kHalves <= 2 ? 3 : 2)
    product_kernel(const __grid_constant__ ProductArguments<T> args, int row_chunks) {
  extern __shared__ __align__(128) char product_smem[];
  // The next kernel may start at once: all it reads before its own wait are weights.
  ptx::launch_dependents();
  const int tile0 = static_cast<int>(blockIdx.x / row_chunks) * Config::kN;
  const int row0 = static_cast<int>(blockIdx.x % row_chunks) * Config::kRows;
  Product<T, Config>{args, product_smem, tile0, row0}.run();
}

}  // namespace diffattn::cuda::token
