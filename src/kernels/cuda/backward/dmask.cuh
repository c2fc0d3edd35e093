// SPDX-License-Identifier: Apache-2.0
//
// dmask[entry] = sum of ds1 + ds2 over the scores (b, h, m, n) that share the entry of an additive
// mask.
//
// The kernel recomputes every score with plain dot products. A learned mask is rare, and in the
// tiled passes its gradient would need extra memory or atomics. One thread sums an entry that fewer
// than 32 scores share; otherwise one warp sums it, in a fixed order.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda {

inline constexpr int kDmaskThreads = 128;

/// One axis of [B, H, M, N]. If the mask has the axis, `entries` is its size; if the mask is
/// broadcast along it, `shared` is its size. The other number is 1.
struct MaskAxis {
  int entries, shared;
};

/// Kernel arguments. ScoreGradient has `float operator()(int b, int h, int m, int n) const` on the
/// device, which returns ds1 + ds2 of one score, or 0 if row m may not see column n.
template <class ScoreGradient>
struct DmaskArguments {
  ScoreGradient score_gradient;
  float* dmask;
  MaskStrides strides;
  MaskAxis b, h, m, n;
  int64_t entries, shared;
  bool warp_per_entry;
};

template <class T>
__device__ inline float dot(const T* x, const T* y, int width) {
  float sum = 0.0f;
  for (int c = 0; c < width; ++c) sum += widen(x[c]) * widen(y[c]);
  return sum;
}

template <class ScoreGradient>
__global__ void __launch_bounds__(kDmaskThreads)
    dmask_kernel(const __grid_constant__ DmaskArguments<ScoreGradient> args) {
  const int64_t thread = blockIdx.x * static_cast<int64_t>(kDmaskThreads) + threadIdx.x;
  const int lanes = args.warp_per_entry ? kWarpSize : 1;
  const int64_t entry = thread / lanes;
  if (entry >= args.entries) return;  // with warp_per_entry, all lanes of a warp return together
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
    sum += args.score_gradient(b, h, m, n);
  }
  if (args.warp_per_entry) sum = warp_sum(sum);
  const MaskStrides& strides = args.strides;
  if (thread % lanes == 0) {
    args.dmask[b0 * strides.batch + h0 * strides.head + m0 * strides.row + n0 * strides.column] =
        sum;
  }
}

template <class ScoreGradient>
void launch_dmask(const Problem& problem, const ProblemGradients& gradients,
                  const ScoreGradient& score_gradient, cudaStream_t stream) {
  const auto axis = [](int64_t size, int64_t stride) {
    const int n = static_cast<int>(size);
    return stride == 0 ? MaskAxis{1, n} : MaskAxis{n, 1};
  };
  const MaskStrides& strides = gradients.dmask_strides;
  DmaskArguments<ScoreGradient> args{.score_gradient = score_gradient,
                                     .dmask = static_cast<float*>(gradients.dmask),
                                     .strides = strides,
                                     .b = axis(problem.batch, strides.batch),
                                     .h = axis(problem.heads, strides.head),
                                     .m = axis(problem.seq_q, strides.row),
                                     .n = axis(problem.seq_k, strides.column)};
  const auto product = [](int x, int y, int z, int w) {
    return static_cast<int64_t>(x) * y * z * w;
  };
  args.entries = product(args.b.entries, args.h.entries, args.m.entries, args.n.entries);
  args.shared = product(args.b.shared, args.h.shared, args.m.shared, args.n.shared);
  args.warp_per_entry = args.shared >= kWarpSize;
  const int64_t threads = args.entries * (args.warp_per_entry ? kWarpSize : 1);
  if (threads == 0) return;
  const auto blocks = static_cast<unsigned>((threads + kDmaskThreads - 1) / kDmaskThreads);
  dmask_kernel<<<blocks, kDmaskThreads, 0, stream>>>(args);
  check_launch("sum of dmask", problem);
}

}  // namespace diffattn::cuda
