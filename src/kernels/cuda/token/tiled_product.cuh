// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step for many rows (mma.sync): y [rows, outputs] = a [rows, in]
// weight^T. The time goes into moving a and the weights from L2 to the SMs.
//
// A block computes a tile of kRows rows and kN tiles of 8 outputs. For each step of 64 inner
// elements, while the next steps load:
//
//   (1) copy a [kRows, 64] and weights [8 kN, 64] to shared memory; the first weights before the
//       previous kernel has ended
//   (2) acc [32, 8 kWarpN] += a weight^T per warp. Warps split rows, outputs and inner elements
//   (3) sum the accumulators of the warps that split the inner elements through shared memory
//   (4) each thread finishes pairs of outputs g and g + 4 of a tile: epilogue.cuh
#pragma once

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/token/arguments.cuh"
#include "kernels/cuda/token/epilogue.cuh"

namespace diffattn::cuda::token {

/// kN: tiles of 8 outputs. kRows / 32 x kWarpsN x kWarpsK warps.
template <int kRows_, int kN_, int kWarpsN_, int kStages_>
struct TiledConfig {
  static constexpr int kRows = kRows_, kN = kN_, kStages = kStages_;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kDepth = 64;  // inner elements of a step
  static constexpr int kWarpsM = kRows / 32, kWarpsN = kWarpsN_;
  static constexpr int kWarpsK = kWarps / (kWarpsM * kWarpsN);
  static constexpr int kWarpN = kN / kWarpsN;  // tiles of 8 outputs of a warp
  static constexpr int kPartTiles = 4;         // tiles of one sum of squares
  static_assert(kWarpsM * kWarpsN * kWarpsK == kWarps && kWarpN % 2 == 0 && kN % kPartTiles == 0);

  static constexpr int kStageElements = (kRows + 8 * kN) * kDepth;
  static constexpr int kPitch = 8 * kN + 8;  // floats; spreads rows over the banks
  static constexpr int kStagesBytes = kStages * kStageElements * 2;
  static constexpr int kSumsBytes = kWarpsK * kRows * kPitch * 4;  // they reuse the stages
  static constexpr int kSmemBytes =
      (kStagesBytes > kSumsBytes ? kStagesBytes : kSumsBytes) + kRows * 20;
};

template <class T, class Config>
struct TiledProduct {
  static constexpr int kRows = Config::kRows, kN = Config::kN, kStages = Config::kStages;
  static constexpr int kDepth = Config::kDepth, kWarpN = Config::kWarpN;
  using Layout = sm80::TileLayout<kDepth>;

  const ProductArguments<T>& args;
  char* smem;
  const int tile0, row0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_k = warp % Config::kWarpsK;
  const int warp_n = warp / Config::kWarpsK % Config::kWarpsN;
  const int warp_m = warp / (Config::kWarpsK * Config::kWarpsN);
  const int rows = min(kRows, args.rows - row0);
  const int steps = (args.in + kDepth - 1) / kDepth;

  T* const stages_smem = reinterpret_cast<T*>(smem);
  float* const sums_smem = reinterpret_cast<float*>(smem);  // [kWarpsK, kRows, kPitch]
  RowPlace<T>* const places_smem =                          // [kRows]
      reinterpret_cast<RowPlace<T>*>(smem + Config::kSmemBytes - kRows * 20);
  float* const factors_smem = reinterpret_cast<float*>(places_smem + kRows);  // [kRows]

  // A thread copies 16 bytes of every 32nd row.
  const int copy_row = threadIdx.x / 8, copy_chunk = threadIdx.x % 8;
  static constexpr int kCopyRows = Config::kThreads / 8;
  static constexpr int kACopies = kRows / kCopyRows, kWeightCopies = 8 * kN / kCopyRows;
  const T *a[kACopies], *weights[kWeightCopies];

  sm80::Accumulator<2, kWarpN> acc = {};

  __device__ void run() {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int output = copy_row + i * kCopyRows;
      weights[i] = args.weight_row(tile0 + output / 8, output % 8) + copy_chunk * 8;
    }
#pragma unroll
    for (int i = 0; i < kACopies; ++i) {  // any row if it does not exist
      const int row = row0 + min(copy_row + i * kCopyRows, rows - 1);
      a[i] = args.a + int64_t{row} * args.in + copy_chunk * 8;
    }
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) load_weights(i, i);  // (1)
    const int row = static_cast<int>(threadIdx.x);
    if (args.epilogue == Epilogues::kHeads && row < rows) {
      places_smem[row] = RowPlace<T>(args, row0 + row);
    }
    ptx::wait_for_previous_kernel();
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      load_a(i, i);
      ptx::commit_copies();
    }
    store_row_factors<kRows, Config::kThreads>(args, row0, rows, factors_smem);
#pragma unroll 1
    for (int step = 0, stage = 0; step < steps; ++step) {
      ptx::wait_copies<kStages - 2>();
      // This step's copies have arrived in all threads, and all warps have read the stage of the
      // previous step, which the next copies overwrite.
      __syncthreads();
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      load_weights(free, step + kStages - 1);
      load_a(free, step + kStages - 1);
      ptx::commit_copies();
      multiply(stage);  // (2)
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have read the stages; the sums reuse them
    store_sums();
    __syncthreads();  // all warps have stored their sums
    with_epilogue(args.epilogue, [&](auto epilogue) {
#pragma unroll 1
      for (int n = 0; n < kN; n += Config::kPartTiles) finish<epilogue.value>(n);
    });
  }

  __device__ uint32_t a_tile(int stage) const {
    return ptx::smem_address(stages_smem + stage * Config::kStageElements);
  }
  __device__ uint32_t weights_tile(int stage) const { return a_tile(stage) + kRows * kDepth * 2; }

  template <int kCopies>
  __device__ void load(uint32_t tile, int step, const T* const (&from)[kCopies]) const {
    if (step >= steps) return;
    const bool inside = step * kDepth + copy_chunk * 8 < args.in;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      ptx::copy_16_or_zero(tile + Layout::offset(copy_row, copy_chunk) + i * kCopyRows * kDepth * 2,
                           from[i] + (inside ? step * kDepth : 0), inside);
    }
  }
  __device__ void load_weights(int stage, int step) const {
    load(weights_tile(stage), step, weights);
  }
  __device__ void load_a(int stage, int step) const { load(a_tile(stage), step, a); }

  __device__ void multiply(int stage) {
    constexpr int kSteps = kDepth / 16 / Config::kWarpsK;  // of 16 inner elements
    constexpr int k16Rows = 16 * kDepth * 2;               // bytes
    const int k0 = warp_k * kSteps * 2;                    // in chunks
    const uint32_t a_first = a_tile(stage) + Layout::offset(warp_m * 32 + lane % 16, k0, lane / 16);
    const uint32_t weights_first =
        weights_tile(stage) +
        Layout::offset(warp_n * kWarpN * 8 + lane % 8 + lane / 16 * 8, k0, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t a_reg[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        ptx::load_matrix_x4(a_reg[m], Layout::along(a_first, 2 * k) + m * k16Rows);
      }
#pragma unroll
      for (int n = 0; n < kWarpN; n += 2) {
        uint32_t w_reg[4];
        ptx::load_matrix_x4(w_reg, Layout::along(weights_first, 2 * k) + n / 2 * k16Rows);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          ptx::mma_m16n8k16<T>(acc[m][n], a_reg[m], w_reg[0], w_reg[1]);
          ptx::mma_m16n8k16<T>(acc[m][n + 1], a_reg[m], w_reg[2], w_reg[3]);
        }
      }
    }
  }

  __device__ void store_sums() {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_m * 32 + m * 16 + half * 8 + lane / 4;
        float* const to = sums_smem + (warp_k * kRows + row) * Config::kPitch +
                          warp_n * kWarpN * 8 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kWarpN; ++n) {
          *reinterpret_cast<float2*>(to + n * 8) =
              make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
        }
      }
    }
  }

  /// (3) and (4) for tiles first_n .. first_n + 3. 16 lanes finish a row, each one pair of outputs.
  template <Epilogues kEpilogue>
  __device__ void finish(int first_n) const {
    constexpr int kLanes = 4 * Config::kPartTiles, kRowsAtOnce = Config::kThreads / kLanes;
    constexpr int kAtOnce = 4;  // rows of a thread that it loads before it stores the first one
    const int n = first_n + static_cast<int>(threadIdx.x) % kLanes / 4;
    const int pair = static_cast<int>(threadIdx.x) % 4;
    const PairFinish<T> finish(args, kEpilogue, min(tile0 + n, args.tiles - 1), pair);
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / kLanes; first < kRows;
         first += kRowsAtOnce * kAtOnce) {
      RowInputs<T> in[kAtOnce];
      float y[kAtOnce][2], squares[kAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int row = min(first + j * kRowsAtOnce, rows - 1);
        finish.load_early(in[j], args, kEpilogue, row0 + row, places_smem[row]);
        finish.load_late(in[j], args, kEpilogue, row0 + row);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) sum(y[j], first + j * kRowsAtOnce, n * 8 + pair);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int row = first + j * kRowsAtOnce;
        if (row >= rows || tile0 + n >= args.tiles) continue;
        squares[j] = finish.store(args, kEpilogue, row0 + row, in[j], y[j][0], y[j][1]);
      }
      if constexpr (kEpilogue == Epilogues::kAdd) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          store_squares(squares[j], first + j * kRowsAtOnce, tile0 + first_n);
        }
      }
    }
  }

  /// Returns the products of columns c and c + 4 of a row.
  __device__ void sum(float (&y)[2], int row, int c) const {
    y[0] = y[1] = 0.0f;
#pragma unroll
    for (int k = 0; k < Config::kWarpsK; ++k) {
      const float* const from = sums_smem + (k * kRows + row) * Config::kPitch + c;
      y[0] += from[0], y[1] += from[4];
    }
    y[0] *= factors_smem[row], y[1] *= factors_smem[row];
  }

  /// Stores the sum of the squares of kPartTiles tiles from `tile` on.
  __device__ void store_squares(float squares, int row, int tile) const {
    constexpr int kLanes = 4 * Config::kPartTiles;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    if (threadIdx.x % kLanes == 0 && row < rows && tile < args.tiles) {
      args.residual.squares[int64_t{row0 + row} * Residual::kMaxParts + tile / Config::kPartTiles] =
          squares;
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    tiled_product_kernel(const __grid_constant__ ProductArguments<T> args, int row_chunks) {
  extern __shared__ __align__(128) char tiled_smem[];
  // The next kernel may start at once: all it reads before its own wait are weights.
  ptx::launch_dependents();
  const int tile0 = static_cast<int>(blockIdx.x / row_chunks) * Config::kN;
  const int row0 = static_cast<int>(blockIdx.x % row_chunks) * Config::kRows;
  TiledProduct<T, Config>{args, tiled_smem, tile0, row0}.run();
}

}  // namespace diffattn::cuda::token
