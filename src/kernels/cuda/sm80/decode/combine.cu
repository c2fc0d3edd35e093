// SPDX-License-Identifier: Apache-2.0
//
// The last step of a decode, one block per row (b, m, h), half of its warps for each map. The parts
// of the keys are dealt to a map's warps in turn, and what they have is added in their order:
//
//   m = max m_s, l = sum l_s 2^(m_s - m), o = sum o_s 2^(m_s - m)     for both maps
//   lse = m ln 2 + log l;  O = o1 / l1 - lambda o2 / l2;  out = epilogue(O)

#include "kernels/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

constexpr int kWarps = 8;  // of a map
constexpr int kThreads = 2 * kWarps * kWarpSize;
constexpr int kMaxWidth = 256;

template <class T>
struct CombineArguments {
  Shape shape;
  Partials partials;
  Rows<const float> lambda;  // [B, M, H]
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;            // [B, M, H, Dv]
  Rows<int8_t> o_rest, o2_rest;  // [B, M, H, Dv]
  Rows<float> lse1, lse2;        // [B, M, H]
};

struct CombineSmem {
  float o[2][kWarps][kMaxWidth];  // of each warp's parts
  float l[2][kWarps];
  float top[2];
  float row[kMaxWidth];
};

template <class T>
struct Combine {
  const CombineArguments<T>& args;
  CombineSmem& smem;
  const int b, m, h;
  const Sequence seq = args.shape.sequence(b);
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize % kWarps;
  const int map = threadIdx.x / (kThreads / 2);
  const int width = args.shape.value_dim;

  __device__ void run() {
    if (m >= seq.seq_q) return;
    add_parts();
    __syncthreads();  // every warp's sums are there
    float l[2];
    for (int which = 0; which < 2; ++which) {
      l[which] = 0.0f;
      for (int w = 0; w < kWarps; ++w) l[which] += smem.l[which][w];
    }
    const int64_t row = seq.q_begin + m;
    // A row that sees nothing has o = 0, and its lambda may be infinite.
    const bool dead = l[0] == 0.0f;
    const float lambda = dead ? 0.0f : *args.lambda.at(b, row, h);
    const SavedRow<T> saved_o2{args.o2.at_or_null(b, row, h), args.o2_rest.at_or_null(b, row, h),
                               nullptr};
    for (int c = threadIdx.x; c < width; c += kThreads) {
      float o[2] = {0.0f, 0.0f};
      for (int w = 0; w < kWarps; ++w) o[0] += smem.o[0][w][c], o[1] += smem.o[1][w][c];
      const float o2 = dead ? 0.0f : o[1] / l[1];
      smem.row[c] = dead ? 0.0f : o[0] / l[0] - lambda * o2;
      saved_o2.store(c, o2);
    }
    __syncthreads();  // O is there
    if (threadIdx.x >= kWarpSize) return;
    if (lane == 0 && args.lse1.data != nullptr) {
      *args.lse1.at(b, row, h) = smem.top[0] * kLn2 + logf(l[0]);
      *args.lse2.at(b, row, h) = smem.top[1] * kLn2 + logf(l[1]);
    }
    finish_row<T>(
        args.epilogue, smem.row, width, dead, args.out.at(b, row, h),
        SavedRow<T>{args.o.at_or_null(b, row, h), args.o_rest.at_or_null(b, row, h), nullptr});
  }

  /// This warp's parts of its map: o and l relative to the map's maximum, to shared memory.
  __device__ void add_parts() {
    const Partials& partials = args.partials;
    const int64_t slot0 = partials.slot(map, 0, b, m, h);
    const int64_t stride = partials.slot(map, 1, b, m, h) - slot0;
    const UsedSplits used(seq, partials.split_keys);
    float top = -INFINITY;
    for (int split = used.begin + lane; split < used.end; split += kWarpSize) {
      top = fmaxf(top, partials.m[slot0 + split * stride]);
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    }
    const float reference = top == -INFINITY ? 0.0f : top;
    float o[kMaxWidth / kWarpSize] = {}, sum = 0.0f;
#pragma unroll 4
    for (int split = used.begin + warp; split < used.end; split += kWarps) {
      const int64_t slot = slot0 + split * stride;
      const float weight = ptx::exp2(partials.m[slot] - reference);
      sum += partials.l[slot] * weight;
#pragma unroll
      for (int i = 0; i < kMaxWidth / kWarpSize; ++i) {
        const int c = lane + i * kWarpSize;
        if (c < width) o[i] += partials.o[slot * width + c] * weight;
      }
    }
#pragma unroll
    for (int i = 0; i < kMaxWidth / kWarpSize; ++i) smem.o[map][warp][lane + i * kWarpSize] = o[i];
    if (lane == 0) smem.l[map][warp] = sum;
    if (lane == 0) smem.top[map] = top;  // every warp of the map has the same
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ CombineArguments<T> args) {
  __shared__ CombineSmem smem;
  const Shape& shape = args.shape;
  const int row = blockIdx.x;
  Combine<T>{args, smem, row / shape.heads / shape.seq_q, row / shape.heads % shape.seq_q,
             row % shape.heads}
      .run();
}

}  // namespace

template <class T>
void combine(const ForwardParams& params, const Partials& partials, cudaStream_t stream) {
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
                                 .lse2 = rows_of<float>(params.lse2)};
  const auto blocks = static_cast<unsigned>(params.batch * params.seq_q * params.heads);
  combine_kernel<T><<<blocks, kThreads, 0, stream>>>(args);
  check_launch("sm80 decode: combine", params);
}

template void combine<bfloat16>(const ForwardParams&, const Partials&, cudaStream_t);
template void combine<float16>(const ForwardParams&, const Partials&, cudaStream_t);

}  // namespace diffattn::cuda::sm80
