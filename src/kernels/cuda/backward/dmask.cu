// SPDX-License-Identifier: Apache-2.0
//
// dmask[entry] = sum of ds1 + ds2 over the (b, h, m, n) that shared the entry of an additive mask:
//
//   p = exp2(scale log2(e) q.k + mask - lse),  dp = dO.v
//   ds1 = p1 (dp - delta1),  ds2 = -lambda p2 (dp - delta2)
//
// Recomputed entry by entry with plain dot products: a learned mask is rare, and its gradient is
// the only result that would need memory or atomics in the tiled passes. Few sharers: one thread
// per entry; many: one warp, whose lanes take every 32nd and meet in a fixed tree.

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 128;

/// One axis of [B, H, M, N]: its size goes either to the entries or to the sharers of one.
struct Axis {
  int entries, shared;
};

template <class T>
struct DmaskArguments {
  Shape shape;
  Rows<const T> q1, q2, k1, k2, v, d_o;
  RowState state;
  float scale_log2, scale2_log2;
  float* dmask;
  MaskStrides strides;
  Axis b, h, m, n;
  int64_t entries, shared;
  bool warp_per_entry;
};

template <class T>
__device__ float dot(const T* x, const T* y, int width) {
  float sum = 0.0f;
  for (int c = 0; c < width; ++c) sum += widen(x[c]) * widen(y[c]);
  return sum;
}

/// ds1 + ds2 of one (b, h, m, n); 0 where it may not be seen.
template <class T>
__device__ float score_gradient(const DmaskArguments<T>& args, int b, int h, int m, int n) {
  const Shape& shape = args.shape;
  const Sequence seq = shape.sequence(b);
  const float bias = HeadMask(shape, seq, b, h).bias(m, n);
  if (bias == -INFINITY) return 0.0f;
  const int64_t row = seq.q_begin + m, column = seq.k_begin + n;
  const int g = shape.kv_head(h);
  const float s1 = dot(args.q1.at(b, row, h), args.k1.at(b, column, g), shape.head_dim);
  const float s2 = dot(args.q2.at(b, row, h), args.k2.at(b, column, g), shape.head_dim);
  const float dp = dot(args.d_o.at(b, row, h), args.v.at(b, column, g), shape.value_dim);
  const RowState& state = args.state;
  const float p1 = ptx::probability(s1 * args.scale_log2 + bias - *state.lse1.at(b, row, h));
  const float p2 = ptx::probability(s2 * args.scale2_log2 + bias - *state.lse2.at(b, row, h));
  return p1 * (dp - *state.delta1.at(b, row, h)) -
         *state.lambda.at(b, row, h) * p2 * (dp - *state.delta2.at(b, row, h));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dmask_kernel(const __grid_constant__ DmaskArguments<T> args) {
  const int64_t thread = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int lanes = args.warp_per_entry ? kWarpSize : 1;
  const int64_t entry = thread / lanes;
  if (entry >= args.entries) return;  // whole warps when a warp shares an entry
  const int n0 = static_cast<int>(entry % args.n.entries);
  const int m0 = static_cast<int>(entry / args.n.entries % args.m.entries);
  const int h0 = static_cast<int>(entry / args.n.entries / args.m.entries % args.h.entries);
  const int b0 = static_cast<int>(entry / args.n.entries / args.m.entries / args.h.entries);
  float sum = 0.0f;
  for (int64_t i = thread % lanes; i < args.shared; i += lanes) {
    const int n = n0 + static_cast<int>(i % args.n.shared);
    const int m = m0 + static_cast<int>(i / args.n.shared % args.m.shared);
    const int h = h0 + static_cast<int>(i / args.n.shared / args.m.shared % args.h.shared);
    const int b = b0 + static_cast<int>(i / args.n.shared / args.m.shared / args.h.shared);
    sum += score_gradient(args, b, h, m, n);
  }
  if (args.warp_per_entry) sum = warp_sum(sum);
  const MaskStrides& strides = args.strides;
  if (thread % lanes == 0) {
    args.dmask[b0 * strides.batch + h0 * strides.head + m0 * strides.row + n0 * strides.column] =
        sum;
  }
}

template <class T>
void reduce(const BackwardParams& params, const BackwardWorkspace& workspace, cudaStream_t stream) {
  const auto axis = [](int64_t size, int64_t stride) {
    const int n = static_cast<int>(size);
    return stride == 0 ? Axis{1, n} : Axis{n, 1};
  };
  DmaskArguments<T> args{.shape = shape_of(params),
                         .q1 = rows_of<const T>(params.q1),
                         .q2 = rows_of<const T>(params.q2),
                         .k1 = rows_of<const T>(params.k1),
                         .k2 = rows_of<const T>(params.k2),
                         .v = rows_of<const T>(params.v),
                         .d_o = rows_of<const T>(workspace.d_o),
                         .state = workspace.state,
                         .scale_log2 = static_cast<float>(params.scale * kLog2E),
                         .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
                         .dmask = static_cast<float*>(params.dmask),
                         .strides = params.dmask_strides,
                         .b = axis(params.batch, params.dmask_strides.batch),
                         .h = axis(params.heads, params.dmask_strides.head),
                         .m = axis(params.seq_q, params.dmask_strides.row),
                         .n = axis(params.seq_k, params.dmask_strides.column)};
  const auto product = [](int x, int y, int z, int w) {
    return static_cast<int64_t>(x) * y * z * w;
  };
  args.entries = product(args.b.entries, args.h.entries, args.m.entries, args.n.entries);
  args.shared = product(args.b.shared, args.h.shared, args.m.shared, args.n.shared);
  args.warp_per_entry = args.shared >= kWarpSize;
  const int64_t threads = args.entries * (args.warp_per_entry ? kWarpSize : 1);
  if (threads == 0) return;
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  dmask_kernel<T><<<blocks, kThreads, 0, stream>>>(args);
  check_launch("sum of dmask", params);
}

}  // namespace

void reduce_dmask(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream) {
  if (params.dmask == nullptr) return;
  switch (params.dtype) {
    case Dtype::kBFloat16: return reduce<bfloat16>(params, workspace, stream);
    case Dtype::kFloat16: return reduce<float16>(params, workspace, stream);
    default: return reduce<float>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda
