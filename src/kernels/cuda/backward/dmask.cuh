// SPDX-License-Identifier: Apache-2.0
//
// dmask[entry] = sum of ds1 + ds2 over the (b, h, m, n) that shared the entry of an additive mask.
// Recomputed entry by entry with plain dot products: a learned mask is rare, and its gradient is
// the only result that would need memory or atomics in the tiled passes. Few sharers: one thread
// per entry; many: one warp, whose lanes take every 32nd and meet in a fixed tree.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda {

inline constexpr int kDmaskThreads = 128;

/// One axis of [B, H, M, N]: its size goes either to the entries or to the sharers of one.
struct MaskAxis {
  int entries, shared;
};

/// ScoreGradient: `float operator()(int b, int h, int m, int n) const` on the device gives ds1 +
/// ds2 of one entry, 0 where it may not be seen.
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
