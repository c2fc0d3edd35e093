// SPDX-License-Identifier: Apache-2.0
//
// Forward of a few query rows against many keys. What costs is reading k1, k2 and v, so each is
// read once for all rows and heads that share it, and the keys are split over blocks:
//
//   rows r = (m, head of the group) of one (batch entry, kv head), 16 to a block
//   for each tile of the block's kSplitKeys keys (the next one is loading meanwhile):
//     (1) s = q k^T, mask, online softmax, o += p v     each warp 16 rows x 16 keys of one map
//   (2) warps of a map are merged: m = max m_w, l = sum l_w 2^(m_w - m), o likewise
//   (3) m, l, o of both maps go to the workspace; combine.cu merges the blocks
#pragma once

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm80/decode/config.h"
#include "kernels/cuda/sm80/decode/partials.cuh"
#include "kernels/cuda/sm80/online_softmax.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

template <class T>
struct DecodeArguments {
  Shape shape;
  Rows<const T> q1, q2;  // [B, M, H, D]
  Rows<const T> k1, k2;  // [B, N, Hkv, D]
  Rows<const T> v;       // [B, N, Hkv, Dv]
  float scale_log2, scale2_log2;
  bool q_aligned, k_aligned, v_aligned;
  Partials partials;
};

template <class T, class Config>
struct Decode {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim, kRows = Config::kRows;
  static constexpr int kBlockN = Config::kBlockN, kThreads = Config::kThreads;
  static constexpr int kWarps = Config::kWarpsPerMap;

  const DecodeArguments<T>& args;
  char* smem;
  const int b, kv_head, row0, split;
  const Sequence seq = args.shape.sequence(b);
  const int group = args.shape.heads / args.shape.kv_heads;
  const int end_row = min(row0 + kRows, seq.seq_q* group);
  const int lane = threadIdx.x % kWarpSize;
  const int map = threadIdx.x / (kThreads / 2);
  const int warp = threadIdx.x / kWarpSize % kWarps;  // of the map

  T* const q_smem = reinterpret_cast<T*>(smem);            // [2, kRows, kD]
  T* const stages_smem = q_smem + 2 * Config::kQElements;  // 2 x {k1, k2, v}
  // After the loop: of both maps' warps, o [2, kWarps, kRows, kOPitch], then m and l.
  float* const o_smem = reinterpret_cast<float*>(smem);
  float* const m_smem = o_smem + 2 * kWarps * kRows * Config::kOPitch;
  float* const l_smem = m_smem + 2 * kWarps * kRows;

  Accumulator<1, kDv / 8> o_reg = {};
  OnlineSoftmax<1> softmax;

  __device__ void run() {
    const UsedSplits used(seq);
    if (row0 >= seq.seq_q * group || split < used.begin || split >= used.end) return;
    const int begin = split * kSplitKeys, end = min(begin + kSplitKeys, seq.end_key);
    softmax.reset();
    load_q();
    load_stage(0, begin, end);
    ptx::commit_copies();
    for (int n0 = begin, stage = 0; n0 < end; n0 += kBlockN, stage ^= 1) {
      if (n0 + kBlockN < end) load_stage(stage ^ 1, n0 + kBlockN, end);
      ptx::commit_copies();
      ptx::wait_copies<1>();
      __syncthreads();  // this stage has landed for every thread
      step(stage, n0);  // (1)
      __syncthreads();  // nobody reads it any more
    }
    ptx::wait_copies<0>();
    __syncthreads();  // q and stages become o_smem
    share_results();
    __syncthreads();  // every warp's results are there
    merge();          // (2) (3)
  }

  __device__ int query_of(int row) const { return row / group; }
  __device__ int head_of(int row) const { return kv_head * group + row % group; }

  __device__ void load_q() {
    constexpr int kChunks = kD / kChunk;
    for (int i = threadIdx.x; i < 2 * kRows * kChunks; i += kThreads) {
      const Rows<const T>& q = i < kRows * kChunks ? args.q1 : args.q2;
      const int row = i / kChunks % kRows, chunk = i % kChunks;
      const bool inside = row0 + row < end_row && chunk * kChunk < args.shape.head_dim;
      const int source = inside ? row0 + row : row0;
      const T* const from =
          q.at(b, seq.q_begin + query_of(source), head_of(source)) + (inside ? chunk * kChunk : 0);
      T* const tile = q_smem + i / kChunks / kRows * Config::kQElements;
      load_chunk(ptx::smem_address(tile) + TileLayout<kD>::offset(row, chunk), from, inside,
                 args.shape.head_dim - chunk * kChunk, args.q_aligned, from);
    }
  }

  __device__ void load_stage(int stage, int n0, int end) {
    T* const k_smem = stages_smem + stage * Config::kStageElements;
    const int first = seq.first_key - n0, last = end - n0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& k = i == 0 ? args.k1 : args.k2;
      load_tile<kBlockN, kD, kThreads>(
          k_smem + i * Config::kKElements,
          TileSource<T>{k.at(b, seq.k_begin + n0, kv_head), k.seq_stride, first, last,
                        args.shape.head_dim, args.k_aligned});
    }
    load_tile<kBlockN, kDv, kThreads>(
        k_smem + 2 * Config::kKElements,
        TileSource<T>{args.v.at(b, seq.k_begin + n0, kv_head), args.v.seq_stride, first, last,
                      args.shape.value_dim, args.v_aligned});
  }

  __device__ void step(int stage, int n0) {
    const T* const stage_smem = stages_smem + stage * Config::kStageElements;
    const T* const k_smem = stage_smem + map * Config::kKElements + warp * 16 * kD;
    const T* const v_smem = stage_smem + 2 * Config::kKElements + warp * 16 * kDv;
    const bool all_visible =
        HeadMask(args.shape, seq, b, 0)
            .all_visible(query_of(row0), query_of(end_row - 1) + 1, n0, n0 + kBlockN);
    const float scale = map == 0 ? args.scale_log2 : args.scale2_log2;
    Accumulator<1, 2> s_reg = {};
    multiply_transposed<1, 16, kD>(s_reg, q_smem + map * Config::kQElements, 0, k_smem);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row0 + e / 2 * 8 + lane / 4;
      const HeadMask mask(args.shape, seq, b, head_of(row));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = n0 + warp * 16 + j * 8 + lane % 4 * 2 + e % 2;
        const float bias = all_visible     ? 0.0f
                           : row < end_row ? mask.bias(query_of(row), n)
                                           : -INFINITY;
        s_reg[0][j][e] = bias == -INFINITY ? bias : s_reg[0][j][e] * scale + bias;
      }
    }
    softmax.update(s_reg, 1.0f, o_reg);
    uint32_t p_reg[1][1][4];
    round_to_operand<T>(p_reg[0], s_reg[0]);
    const T* const tile = stage_smem + 2 * Config::kKElements;
    const bool skip_zeros =
        !all_visible && __syncthreads_or(has_non_finite<kBlockN, kDv, kThreads>(tile)) != 0;
    if (skip_zeros) {
      multiply_skipping_zeros<1, kDv, 16>(o_reg, p_reg, v_smem);
    } else {
      multiply<1, kDv, 16>(o_reg, p_reg, v_smem);
    }
  }

  __device__ void share_results() {
    softmax.finish();
    const int first = (map * kWarps + warp) * kRows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + r * 8 + lane / 4;
      m_smem[row] = softmax.m[0][r];
      l_smem[row] = softmax.l[0][r];
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
        float* const to = o_smem + row * Config::kOPitch + j * 8 + lane % 4 * 2;
        to[0] = o_reg[0][j][2 * r];
        to[1] = o_reg[0][j][2 * r + 1];
      }
    }
  }

  __device__ void merge() {
    const int width = args.shape.value_dim;
    for (int i = threadIdx.x / kWarpSize; i < 2 * kRows; i += kThreads / kWarpSize) {
      const int which = i / kRows, row = i % kRows;
      if (row0 + row >= end_row) continue;
      float m = -INFINITY, l = 0.0f, weight[kWarps];
      for (int w = 0; w < kWarps; ++w) m = fmaxf(m, m_smem[(which * kWarps + w) * kRows + row]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const int at = (which * kWarps + w) * kRows + row;
        weight[w] = m == -INFINITY ? 0.0f : ptx::exp2(m_smem[at] - m);
        l += l_smem[at] * weight[w];
      }
      const int64_t slot =
          args.partials.slot(which, split, b, query_of(row0 + row), head_of(row0 + row));
      if (lane == 0) args.partials.m[slot] = m;
      if (lane == 0) args.partials.l[slot] = l;
      for (int c = lane; c < width; c += kWarpSize) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float x = o_smem[((which * kWarps + w) * kRows + row) * Config::kOPitch + c];
          if (weight[w] != 0.0f) sum += x * weight[w];
        }
        args.partials.o[slot * width + c] = sum;
      }
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads)
    decode_kernel(const __grid_constant__ DecodeArguments<T> args, int row_tiles, int splits) {
  extern __shared__ __align__(128) char smem[];
  // Row tiles of the same keys are neighbours: the second finds them in the cache.
  const BlockPlace place(blockIdx.x / row_tiles, args.shape.kv_heads, splits);
  const int row0 = static_cast<int>(blockIdx.x % row_tiles) * Config::kRows;
  Decode<T, Config>{args, smem, place.b, place.h, row0, place.tile}.run();
}

}  // namespace diffattn::cuda::sm80
