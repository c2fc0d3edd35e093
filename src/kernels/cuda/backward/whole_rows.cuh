// SPDX-License-Identifier: Apache-2.0
//
// Row pass of the backward (equations in rows.cu) for the common case: bfloat16 or float16 rows
// with 16-byte alignment, o and o2 saved by the forward, no additive mask. Half a warp computes one
// row, because the number of instructions per row limits the speed; a lane has 8 adjacent columns
// of every 128. The kernel also zeroes the sums of dq, because nothing in it waits for the stores.
#pragma once

#include "kernels/cuda/backward/row_arguments.cuh"
#include "kernels/cuda/rest.cuh"

namespace diffattn::cuda {

inline constexpr int kRowLanes = kWarpSize / 2;  // lanes per row
inline constexpr int kRowChunk = 8;              // adjacent columns of a lane, 16 bytes

/// Returns the sum over the lanes of a row; each lane gets the same bits.
__device__ inline float row_sum(float x) {
  for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

/// 8 columns of a row in their storage format.
struct RowChunk {
  uint4 words = {};
  uint2 rests = {};  // rounding errors, one byte per column, see rest.cuh

  template <class T>
  __device__ void load(const Rows<const T>& rows, int b, int64_t l, int h, int c) {
    words = *reinterpret_cast<const uint4*>(rows.at(b, l, h) + c);
  }
  __device__ void load_rests(const Rows<const int8_t>& rows, int b, int64_t l, int h, int c) {
    if (rows.data == nullptr) return;
    rests = *reinterpret_cast<const uint2*>(rows.at(b, l, h) + c);
  }
  template <class T>
  __device__ float value(int e) const {
    return with_rest(reinterpret_cast<const T*>(&words)[e],
                     reinterpret_cast<const int8_t*>(&rests)[e]);
  }
  template <class T>
  __device__ float rounded(int e) const {
    return widen(reinterpret_cast<const T*>(&words)[e]);
  }
};

/// Computes rows with kChunks chunks of 8 columns per lane.
template <class T, int kChunks>
struct PrepareWholeRow {
  const RowsArguments<T, T>& args;
  const int lane = threadIdx.x % kRowLanes;
  float dweight[kChunks][kRowChunk] = {};
  float gain[kChunks][kRowChunk];

  __device__ explicit PrepareWholeRow(const RowsArguments<T, T>& args) : args(args) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int e = 0; e < kRowChunk; ++e) {
        const int c = column(i) + e;
        gain[i][e] = c < args.shape.value_dim ? args.epilogue.gain(c) : 0.0f;
      }
    }
  }

  __device__ int column(int i) const { return (i * kRowLanes + lane) * kRowChunk; }

  /// Computes one row per half-warp. All lanes of the warp must call it; `exists` may differ
  /// between the two rows.
  __device__ void run(bool exists, int b, int64_t l, int h) {
    const int width = args.shape.value_dim;
    RowChunk dout[kChunks], o_chunk[kChunks], o2_chunk[kChunks];
    float lse1 = -INFINITY, lse2 = -INFINITY, lambda = 0.0f;
    if (exists) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int c = column(i);
        if (c >= width) continue;
        dout[i].load(args.dout, b, l, h, c);
        o_chunk[i].load(args.o, b, l, h, c);
        o2_chunk[i].load(args.o2, b, l, h, c);
        o_chunk[i].load_rests(args.o_rest, b, l, h, c);
        o2_chunk[i].load_rests(args.o2_rest, b, l, h, c);
      }
      lse1 = *args.lse1.at(b, l, h), lse2 = *args.lse2.at(b, l, h);
      lambda = *args.lambda.at(b, l, h);
    }
    const bool dead = lse1 == -INFINITY;
    float rstd = 1.0f, projection = 0.0f;
    if (args.epilogue.norm) {
      float squares = 0.0f, inner = 0.0f;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (column(i) >= width) continue;
#pragma unroll
        for (int e = 0; e < kRowChunk; ++e) {
          const float o = o_chunk[i].template value<T>(e);
          squares += o * o;
          inner += dout[i].template rounded<T>(e) * gain[i][e] * o;
        }
      }
      squares = row_sum(squares), inner = row_sum(inner);
      rstd = 1.0f / sqrtf(squares / width + args.epilogue.eps);
      projection = rstd * rstd * inner / width;
    }
    float delta = 0.0f, delta2 = 0.0f, minus_dlambda = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (dead || column(i) >= width) continue;
      const uint4 d_o = gradient(i, dout[i], o_chunk[i], o2_chunk[i], rstd, projection, delta,
                                 delta2, minus_dlambda);
      *reinterpret_cast<uint4*>(args.d_o.at(b, l, h) + column(i)) = d_o;
    }
    if (dead && exists) clear(b, l, h);
    delta = row_sum(delta), delta2 = row_sum(delta2), minus_dlambda = row_sum(minus_dlambda);
    if (!exists || lane != 0) return;
    const float seen = dead ? 0.0f : lambda;
    const int64_t at = args.state.lse1.at(b, l, h) - args.state.lse1.data;  // same in each array
    args.state.lse1.data[at] = dead ? INFINITY : lse1 * kLog2E;
    args.state.lse2.data[at] = dead ? INFINITY : lse2 * kLog2E;
    args.state.delta1.data[at] = delta + seen * delta2;
    args.state.delta2.data[at] = delta2;
    args.state.lambda.data[at] = seen;
    args.state.minus_dlambda.data[at] = minus_dlambda;
  }

  /// Returns dO of 8 columns and adds their terms to delta, delta2, minus_dlambda and dweight.
  __device__ uint4 gradient(int i, const RowChunk& dout, const RowChunk& o_chunk,
                            const RowChunk& o2_chunk, float rstd, float projection, float& delta,
                            float& delta2, float& minus_dlambda) {
    uint4 packed;
    uint32_t* const words = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
    for (int e = 0; e < kRowChunk; e += 2) {
      float exact[2];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float o = o_chunk.template value<T>(e + x), g = dout.template rounded<T>(e + x);
        dweight[i][e + x] += args.epilogue.out_scale * g * o * rstd;
        exact[x] = rstd * (g * gain[i][e + x] - o * projection);
      }
      words[e / 2] = pack<T>(exact[0], exact[1]);
      const float2 d_o = unpack<T>(words[e / 2]);
      const float o2[2] = {o2_chunk.template value<T>(e), o2_chunk.template value<T>(e + 1)};
      delta += d_o.x * o_chunk.template value<T>(e) + d_o.y * o_chunk.template value<T>(e + 1);
      delta2 += d_o.x * o2[0] + d_o.y * o2[1];
      minus_dlambda += exact[0] * o2[0] + exact[1] * o2[1];
    }
    return packed;
  }

  /// Stores dO = 0 for a row that sees no column, whatever dout is.
  __device__ void clear(int b, int64_t l, int h) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (column(i) >= args.shape.value_dim) continue;
      *reinterpret_cast<uint4*>(args.d_o.at(b, l, h) + column(i)) = uint4{};
    }
  }
};

/// Runs the row pass over `count` < 2^31 rows (b, h, m) with kRowBlocks blocks of kWarps warps.
template <class T, int kChunks, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize, 4 / kChunks)
    prepare_whole_rows_kernel(const __grid_constant__ RowsArguments<T, T> args, int count) {
  constexpr int kRows = 2 * kWarps;  // rows that a block computes at once
  __shared__ float parts[kRows][kChunks * kRowLanes * kRowChunk];
  PrepareWholeRow<T, kChunks> rows(args);
  const Shape& shape = args.shape;
  const int mine = static_cast<int>(threadIdx.x) / kRowLanes;
  const unsigned heads = shape.heads, seq_q = shape.seq_q;
  // Each iteration zeroes two chunks of the sums beside its loads, so that reads and writes
  // overlap.
  constexpr int kAllThreads = kRowBlocks * kWarps * kWarpSize;
  int64_t chunk = blockIdx.x * (kWarps * kWarpSize) + threadIdx.x;
  for (unsigned first = blockIdx.x * kRows; first < static_cast<unsigned>(count);
       first += kRowBlocks * kRows) {
#pragma unroll
    for (int i = 0; i < 2; ++i, chunk += kAllThreads) {
      if (chunk < args.sum_chunks) args.sums[chunk] = uint4{};
    }
    // Consecutive rows belong to one head, because the RowState arrays are [H, rows].
    const unsigned row = first + mine, head = row / seq_q;
    const int b = static_cast<int>(head / heads), m = static_cast<int>(row % seq_q);
    bool exists = row < static_cast<unsigned>(count);
    int64_t l = m;
    if (exists && shape.cu_seqlens_q != nullptr) {
      const Sequence seq = shape.sequence(b);
      exists = m < seq.seq_q;
      l += seq.q_begin;
    }
    rows.run(exists, b, l, static_cast<int>(head % heads));
  }
  for (; chunk < args.sum_chunks; chunk += kAllThreads) args.sums[chunk] = uint4{};
  if (args.dnorm_parts == nullptr) return;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int e = 0; e < kRowChunk; ++e) parts[mine][rows.column(i) + e] = rows.dweight[i][e];
  }
  __syncthreads();  // all half-warps have written their partial sums
  for (int c = threadIdx.x; c < shape.value_dim; c += kWarps * kWarpSize) {
    float sum = 0.0f;
    for (int r = 0; r < kRows; ++r) sum += parts[r][c];
    args.dnorm_parts[static_cast<int64_t>(blockIdx.x) * shape.value_dim + c] = sum;
  }
}

}  // namespace diffattn::cuda
