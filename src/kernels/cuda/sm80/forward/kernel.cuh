// SPDX-License-Identifier: Apache-2.0
//
// sm80 forward (mma.sync) for Dv above 128. pair.cuh handles smaller Dv.
//
//   out = epilogue(softmax(scale q1 k1^T + mask) v - lambda softmax(scale2 q2 k2^T + mask) v)
//
// One block computes kBlockM rows of one (batch entry, head). Warps 0-3 compute map 1 and warps 4-7
// map 2, each 16 rows:
//
//   (1) load q1, q2 and the first tile of k1, k2, v
//   for each key tile that any row may see, while the next tile loads:
//     (2) s = q k^T                                    [kBlockM, kBlockN], float
//     (3) s = scale log2(e) s + mask, or -inf where the column is hidden from the row
//     (4) rescale m, l, o;  p = exp2(s - m)            online softmax, base 2
//     (5) o += p v                                     p rounded to T, o in float
//   (6) lse = m ln 2 + log l;  map 2's warps pass o2 = o / l to map 1's through shared memory
//   (7) O = o1 / l1 - lambda o2;  out = epilogue(O)    rounded once
//
// A hidden column never affects a row, even if it holds NaN. Step (3) overwrites the column's
// score. Loads write padding as 0. If a partly visible tile of v holds an infinity or NaN, step (5)
// skips the entries of p that are 0.
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm80/forward/arguments.cuh"
#include "kernels/cuda/sm80/forward/config.h"
#include "kernels/cuda/sm80/online_softmax.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

template <class T, class Config>
struct Forward {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim;
  static constexpr int kM = Config::kMTiles, kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads;
  static_assert(Config::kStages == 2);

  const ForwardArguments<T>& args;
  char* smem;
  const WorkTile work;
  const Sequence seq = args.shape.sequence(work.b);
  const int row0 = work.tile * kBlockM;
  const int kv_head = args.shape.kv_head(work.h);
  const HeadMask mask{args.shape, seq, work.b, work.h};
  const int lane = threadIdx.x % kWarpSize;
  const int map = threadIdx.x / (kThreads / 2);  // 0: map 1, 1: map 2
  const int warp_row = threadIdx.x / kWarpSize % Config::kWarpsPerMap * kM * 16;
  const float scale = map == 0 ? args.scale_log2 : args.scale2_log2;

  T* const q_smem = reinterpret_cast<T*>(smem);              // [2, kBlockM, kD]
  T* const stages_smem = q_smem + 2 * Config::kQElements;    // [2] x {k1, k2, v}
  float* const o_smem = reinterpret_cast<float*>(smem);      // [kBlockM, kOPitch], after the loop
  float* const l_smem = o_smem + kBlockM * Config::kOPitch;  // [2, kBlockM]

  Accumulator<kM, kDv / 8> o_reg;
  OnlineSoftmax<kM> softmax;

  __device__ void run() {
    if (row0 >= seq.seq_q) return;
    const int end_row = min(row0 + kBlockM, seq.seq_q);
    const int begin = max(0, seq.first_visible(row0)) / kBlockN * kBlockN;
    const int end = seq.end_visible(end_row - 1);
    softmax.reset();
    for (int i = 0; i < kM; ++i) {
      for (int j = 0; j < kDv / 8; ++j) {
        for (int e = 0; e < 4; ++e) o_reg[i][j][e] = 0.0f;
      }
    }
    load_q();  // (1)
    load_stage(0, begin, end);
    ptx::commit_copies();
    for (int n0 = begin, stage = 0; n0 < end; n0 += kBlockN, stage ^= 1) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      if (n0 + kBlockN < end) load_stage(stage ^ 1, n0 + kBlockN, end);
      ptx::commit_copies();
      step(stage, n0, end_row);
    }
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have finished reading q and the stages; o_smem reuses them
    finish(end_row);
  }

  __device__ void load_q() {
    const int rows = seq.seq_q - row0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& q = i == 0 ? args.q1 : args.q2;
      load_tile<kBlockM, kD, kThreads>(
          q_smem + i * Config::kQElements,
          TileSource<T>{q.at(work.b, seq.q_begin + row0, work.h), q.seq_stride, 0, rows,
                        args.shape.head_dim, args.q_aligned});
    }
  }

  __device__ void load_stage(int stage, int n0, int end) {
    T* const k_smem = stages_smem + stage * Config::kStageElements;
    const int first = seq.first_key - n0, last = end - n0;
    for (int i = 0; i < (args.shared_k ? 1 : 2); ++i) {
      const Rows<const T>& k = i == 0 ? args.k1 : args.k2;
      load_tile<kBlockN, kD, kThreads>(
          k_smem + i * Config::kKElements,
          TileSource<T>{k.at(work.b, seq.k_begin + n0, kv_head), k.seq_stride, first, last,
                        args.shape.head_dim, args.k_aligned});
    }
    load_tile<kBlockN, kDv, kThreads>(
        k_smem + 2 * Config::kKElements,
        TileSource<T>{args.v.at(work.b, seq.k_begin + n0, kv_head), args.v.seq_stride, first, last,
                      args.shape.value_dim, args.v_aligned});
  }

  __device__ void step(int stage, int n0, int end_row) {
    const T* const stage_smem = stages_smem + stage * Config::kStageElements;
    const T* const k_smem = stage_smem + (args.shared_k ? 0 : map) * Config::kKElements;
    const T* const v_smem = stage_smem + 2 * Config::kKElements;
    const bool all_visible = mask.all_visible(row0, end_row, n0, n0 + kBlockN);
    // All threads of the block have the same all_visible, so all of them reach the vote's barrier.
    const bool skip_zeros =
        !all_visible && __syncthreads_or(has_non_finite<kBlockN, kDv, kThreads>(v_smem)) != 0;

    Accumulator<kM, kBlockN / 8> s_reg = {};
    multiply_transposed<kM, kBlockN, kD>(s_reg, q_smem + map * Config::kQElements, warp_row,
                                         k_smem);  // (2)
    // In a fully visible tile, softmax.update applies the scale inside the exponent. Step (3) must
    // apply a scale <= 0, because the row's largest s then does not give the largest scale * s.
    const bool scale_late = all_visible && scale > 0.0f;
    if (!scale_late) scale_and_mask(s_reg, n0);               // (3)
    softmax.update(s_reg, scale_late ? scale : 1.0f, o_reg);  // (4)
    uint32_t p_reg[kM][kBlockN / 16][4];
    for (int i = 0; i < kM; ++i) round_to_operand<T>(p_reg[i], s_reg[i]);
    if (skip_zeros) {
      multiply_skipping_zeros<kM, kDv, kBlockN>(o_reg, p_reg, v_smem);
    } else {
      multiply<kM, kDv, kBlockN>(o_reg, p_reg, v_smem);  // (5)
    }
  }

  /// Multiplies the scores by scale * log2(e) and sets hidden ones to -inf.
  __device__ void scale_and_mask(Accumulator<kM, kBlockN / 8>& s, int n0) const {
    if (args.shape.mask.kind == MaskKind::kAdditive) return scale_and_add(s, n0);
    static_assert(kM == 1);
    constexpr int kWords = kBlockN / 32;  // visibility words per row; one lane computes each
    const uint32_t word =
        seen_word(mask, row0 + warp_row + lane % 16, n0 + lane / 16 % kWords * 32);
#pragma unroll
    for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int from = j / 4 * 16 + r * 8 + lane / 4;
        const uint32_t seen = __shfl_sync(0xffffffffu, word, from) >> (j % 4 * 8 + lane % 4 * 2);
        float* const x = s[0][j] + 2 * r;
        x[0] = (seen & 1) != 0 ? x[0] * scale : -INFINITY;  // overwrites even a NaN
        x[1] = (seen & 2) != 0 ? x[1] * scale : -INFINITY;
      }
    }
  }

  __device__ void scale_and_add(Accumulator<kM, kBlockN / 8>& s, int n0) const {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int m = row0 + warp_row + i * 16 + e / 2 * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < kBlockN / 8; ++j) {
          const float bias = mask.bias(m, n0 + j * 8 + lane % 4 * 2 + e % 2);
          // A bias of -inf overwrites even a NaN score.
          s[i][j][e] = bias == -INFINITY ? bias : s[i][j][e] * scale + bias;
        }
      }
    }
  }

  __device__ void finish(int end_row) {
    softmax.finish();
    store_statistics(end_row);  // (6)
    if (map == 1) {
      exchange([](float x, float, float& slot) { slot = x; });
    }
    __syncthreads();  // map 2's warps have written o2 to o_smem
    if (args.o2.data != nullptr || args.o2_exact.data != nullptr) store_o2(end_row);
    __syncthreads();  // all warps have read o2 from o_smem; map 1's warps overwrite it with O
    if (map == 0) {
      exchange([](float x, float lambda, float& slot) { slot = x - lambda * slot; });  // (7)
    }
    __syncthreads();  // map 1's warps have written O to o_smem
    for (int r = threadIdx.x / kWarpSize; r < end_row - row0; r += kThreads / kWarpSize) {
      const int64_t l = seq.q_begin + row0 + r;
      finish_row(args.epilogue, o_smem + r * Config::kOPitch, args.shape.value_dim,
                 l_smem[r] == 0.0f, args.out.at(work.b, l, work.h),
                 SavedRow<T>{args.o.at_or_null(work.b, l, work.h),
                             args.o_rest.at_or_null(work.b, l, work.h),
                             args.o_exact.at_or_null(work.b, l, work.h)});
    }
  }

  /// Stores l to shared memory, and lse to global memory if the caller wants it.
  __device__ void store_statistics(int end_row) {
    const Rows<float>& lse = map == 0 ? args.lse1 : args.lse2;
    if (lane % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + i * 16 + r * 8 + lane / 4;
        l_smem[map * kBlockM + row] = softmax.l[i][r];
        if (lse.data != nullptr && row0 + row < end_row) {
          *lse.at(work.b, seq.q_begin + row0 + row, work.h) = softmax.lse(i, r);
        }
      }
    }
  }

  /// Calls body(o / l, lambda, slot of o_smem) for each of this thread's entries of o.
  template <class Body>
  __device__ void exchange(Body body) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + i * 16 + r * 8 + lane / 4;
        const bool dead = softmax.l[i][r] == 0.0f;
        const float inverse = dead ? 0.0f : 1.0f / softmax.l[i][r];
        float lambda = 0.0f;  // for a row that sees no column: an infinite lambda would give NaN
        if (!dead && row0 + row < seq.seq_q) {
          lambda = *args.lambda.at(work.b, seq.q_begin + row0 + row, work.h);
        }
#pragma unroll
        for (int j = 0; j < kDv / 8; ++j) {
          float* const slot = o_smem + row * Config::kOPitch + j * 8 + lane % 4 * 2;
          body(o_reg[i][j][2 * r] * inverse, lambda, slot[0]);
          body(o_reg[i][j][2 * r + 1] * inverse, lambda, slot[1]);
        }
      }
    }
  }

  __device__ void store_o2(int end_row) {
    const int width = args.shape.value_dim;
    for (int r = threadIdx.x / kWarpSize; r < end_row - row0; r += kThreads / kWarpSize) {
      const int64_t l = seq.q_begin + row0 + r;
      const SavedRow<T> saved{args.o2.at_or_null(work.b, l, work.h),
                              args.o2_rest.at_or_null(work.b, l, work.h),
                              args.o2_exact.at_or_null(work.b, l, work.h)};
      for (int c = lane; c < width; c += kWarpSize) {
        saved.store(c, o_smem[r * Config::kOPitch + c]);
      }
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    forward_kernel(const __grid_constant__ ForwardArguments<T> args, int tiles) {
  extern __shared__ __align__(128) char smem[];
  WorkTile work(blockIdx.x, args.shape.heads, tiles);
  work.tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  Forward<T, Config>{args, smem, work}.run();
}

}  // namespace diffattn::cuda::sm80
