// SPDX-License-Identifier: Apache-2.0
//
// Second kernel of split-key decode: merges the partial states of all splits s of a row.
//
//   m = max m_s, l = sum l_s 2^(m_s - m), o = sum o_s 2^(m_s - m)     for both maps
//   lse = m ln 2 + log l;  O = o1 / l1 - lambda o2 / l2;  out = epilogue(O)
//
// One block per row (b, m, h): warps 0-7 merge map 1, warps 8-15 map 2. Warp w of a map sums o of
// splits w, w + 8, w + 16, ... Warp 0 of the block then adds the warps' sums in a fixed order and
// finishes the row. Latency dominates, so a warp issues its loads for 32 splits before it uses the
// first one.

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/programmatic_launch.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

constexpr int kWarps = 8;  // warps per map
constexpr int kThreads = 2 * kWarps * kWarpSize;
constexpr int kAtOnce = kWarpSize / kWarps;  // splits of each 32 that one warp sums

template <class T>
struct CombineArguments {
  Shape shape;
  Partials partials;
  Rows<const float> lambda;  // [B, M, H]
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;            // [B, M, H, Dv]
  Rows<int8_t> o_rest, o2_rest;  // [B, M, H, Dv]
  Rows<float> lse1, lse2;        // [B, M, H]
  bool next_may_start;  // the next kernel waits itself for all that decode_kernel waits for
};

/// Shared memory of a block. A lane owns columns [128 i + 4 lane, 128 i + 4 lane + 4), i < kQuads.
template <int kQuads>
struct CombineSmem {
  float4 o[2][kWarps][kQuads][kWarpSize];  // each warp's sum, relative to the row maximum
  float l[2], top[2];                      // row sum and row maximum (base 2) of each map
  float gain[kQuads * 128];                // epilogue factor of each column
};

template <class T, int kQuads>
struct Combine {
  const CombineArguments<T>& args;
  CombineSmem<kQuads>& smem;
  const int b, m, h;
  const Sequence seq = args.shape.sequence(b);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize % kWarps;
  const int map = threadIdx.x / (kThreads / 2);
  const int width = args.shape.value_dim;
  const int64_t slot0 = args.partials.slot(map, 0, b, m, h);
  const int64_t stride = args.partials.slot(map, 1, b, m, h) - slot0;
  const UsedSplits used{seq, args.partials.split_keys};

  __device__ void run() {
    const bool exists = m < seq.seq_q;
    const int64_t row = seq.q_begin + m;
    // decode_kernel triggers this launch when the norm weight is ready. gain is in shared memory to
    // save registers: a block must fit on an SM beside two blocks of decode_kernel.
    const int c = static_cast<int>(threadIdx.x);
    if (c < width) smem.gain[c] = args.epilogue.gain(c);
    if (args.next_may_start) ptx::launch_dependents();
    // Every block waits, even one without a row, so that this kernel ends only after decode_kernel.
    ptx::wait_for_previous_kernel();
    if (!args.next_may_start) ptx::launch_dependents();
    if (!exists) return;
    const float lambda = *args.lambda.at(b, row, h);
    add_parts();
    __syncthreads();  // all warps have written their sums
    if (threadIdx.x < kWarpSize) finish(row, lambda);
  }

  /// Sums o of this warp's splits and writes o, l and the row maximum to shared memory. Every warp
  /// of a map computes the same l and row maximum, over all splits.
  __device__ void add_parts() {
    const Partials& partials = args.partials;
    float top = -INFINITY, sum = 0.0f;
    float o[kQuads][4] = {};
    for (int first = used.begin; first < used.end; first += kWarpSize) {
      const bool mine = first + lane < used.end;
      const int64_t slot = slot0 + (first + lane) * stride;
      const float m_part = mine ? partials.m[slot] : -INFINITY;
      const float l_part = mine ? partials.l[slot] : 0.0f;
      float4 parts[kAtOnce][kQuads] = {};
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int split = first + warp + u * kWarps;
        const float* const from = partials.o + (slot0 + split * stride) * partials.pitch + lane * 4;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          if (split < used.end && i * 128 + lane * 4 < width) {
            parts[u][i] = *reinterpret_cast<const float4*>(from + i * 128);
          }
        }
      }
      float best = m_part;
      for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
      }
      const float top_new = fmaxf(top, best);
      const float top_finite = top_new == -INFINITY ? 0.0f : top_new;
      const float decay = ptx::exp2(top - top_finite), weight = ptx::exp2(m_part - top_finite);
      top = top_new;
      sum = sum * decay + warp_sum(l_part * weight);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][e] *= decay;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float w = __shfl_sync(0xffffffffu, weight, warp + u * kWarps);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          const float4& x = parts[u][i];
          o[i][0] += x.x * w, o[i][1] += x.y * w, o[i][2] += x.z * w, o[i][3] += x.w * w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      smem.o[map][warp][i][lane] = make_float4(o[i][0], o[i][1], o[i][2], o[i][3]);
    }
    if (lane == 0) smem.l[map] = sum, smem.top[map] = top;  // same values in all warps of the map
  }

  /// Finishes the row. Only warp 0 calls it.
  __device__ void finish(int64_t row, float lambda_or_garbage) {
    const float l1 = smem.l[0], l2 = smem.l[1];
    // A row that sees no column has o = 0; an infinite lambda would turn it into NaN.
    const bool dead = l1 == 0.0f;
    const float lambda = dead ? 0.0f : lambda_or_garbage;
    const float inverse1 = dead ? 0.0f : 1.0f / l1, inverse2 = dead ? 0.0f : 1.0f / l2;
    const SavedRow<T> saved_o2{args.o2.at_or_null(b, row, h), args.o2_rest.at_or_null(b, row, h),
                               nullptr};
    float o[kQuads][4], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if (i * 128 >= width) continue;
      float x1[4] = {}, x2[4] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 y1 = smem.o[0][w][i][lane], y2 = smem.o[1][w][i][lane];
        x1[0] += y1.x, x1[1] += y1.y, x1[2] += y1.z, x1[3] += y1.w;
        x2[0] += y2.x, x2[1] += y2.y, x2[2] += y2.z, x2[3] += y2.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x2[e] *= inverse2;
        o[i][e] = x1[e] * inverse1 - lambda * x2[e];
        if (i * 128 + lane * 4 + e < width) squares += o[i][e] * o[i][e];
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (i * 128 + lane * 4 + e < width) saved_o2.store(i * 128 + lane * 4 + e, x2[e]);
      }
    }
    const float rstd = args.epilogue.rstd(warp_sum(squares), width);
    if (lane == 0 && args.lse1.data != nullptr) {
      *args.lse1.at(b, row, h) = smem.top[0] * kLn2 + logf(l1);
      *args.lse2.at(b, row, h) = smem.top[1] * kLn2 + logf(l2);
    }
    store(o, row, rstd, dead);
  }

  __device__ void store(const float (&o)[kQuads][4], int64_t row, float rstd, bool dead) {
    const SavedRow<T> saved{args.o.at_or_null(b, row, h), args.o_rest.at_or_null(b, row, h),
                            nullptr};
    T* const out = args.out.at(b, row, h);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = i * 128 + lane * 4 + e;
        if (c >= width) continue;
        saved.store(c, o[i][e]);
        out[c] = narrow<T>(dead ? 0.0f : o[i][e] * rstd * smem.gain[c]);
      }
    }
  }
};

template <class T, int kQuads>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ CombineArguments<T> args) {
  __shared__ CombineSmem<kQuads> smem;
  const Shape& shape = args.shape;
  const int row = blockIdx.x;
  Combine<T, kQuads>{args, smem, row / shape.heads / shape.seq_q, row / shape.heads % shape.seq_q,
                     row % shape.heads}
      .run();
}

}  // namespace

template <class T>
void combine(const ForwardParams& params, const DecodePlan& plan, const Partials& partials,
             cudaStream_t stream) {
  const CombineArguments<T> args{.shape = shape_of(params),
                                 .partials = partials,
                                 .lambda = rows_of<const float>(params.lambda),
                                 .epilogue = epilogue_of(params.epilogue),
                                 .out = rows_of<T>(params.out),
                                 .o = rows_of<T>(params.o),
                                 .o2 = rows_of<T>(params.o2),
                                 .o_rest = rows_of<int8_t>(params.o_rest),
                                 .o2_rest = rows_of<int8_t>(params.o2_rest),
                                 .lse1 = rows_of<float>(params.lse1),
                                 .lse2 = rows_of<float>(params.lse2),
                                 .next_may_start = plan.old_keys_ready};
  const auto blocks = static_cast<unsigned>(params.batch * params.seq_q * params.heads);
  const auto kernel = params.value_dim <= 128 ? combine_kernel<T, 1> : combine_kernel<T, 2>;
  // As decode_kernel, so that blocks of both can run on an SM at the same time.
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "sm80 decode: combine", params);
  launch_programmatic_if_supported(kernel, blocks, kThreads, 0, stream, params,
                                   "sm80 decode: combine", args);
}

template void combine<bfloat16>(const ForwardParams&, const DecodePlan&, const Partials&,
                                cudaStream_t);
template void combine<float16>(const ForwardParams&, const DecodePlan&, const Partials&,
                               cudaStream_t);
template void combine<float>(const ForwardParams&, const DecodePlan&, const Partials&,
                             cudaStream_t);

}  // namespace diffattn::cuda::sm80
