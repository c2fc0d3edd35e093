// SPDX-License-Identifier: Apache-2.0
//
// The part of a selective scan that one thread has: kN states of one channel. kLanes adjacent
// threads share the channel's 4 kLanes states.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/selective_scan.h"

namespace diffattn::cuda::scan {

constexpr int kChunk = static_cast<int>(kScanChunk);
constexpr int kThreads = static_cast<int>(kScanThreads);
constexpr float kLog2E = 1.44269504f;

/// Sizes for kS states.
template <int kS>
struct Sizes {
  static constexpr int kN = static_cast<int>(kLaneStates);
  static constexpr int kLanes = kS / kN;
  static constexpr int kChannels = kThreads / kLanes;  // of a block
};

__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(__expf(-fabsf(x))); }

/// The tokens of a chunk that a block reads, as floats.
template <int kS>
struct Chunk {
  float u[kChunk][Sizes<kS>::kChannels];
  float delta[kChunk][Sizes<kS>::kChannels];
  float b[kChunk][kS];
  float c[kChunk][kS];
};

/// Position of a thread and of its block.
template <int kS>
struct Place {
  using S = Sizes<kS>;
  int sequence, first, channel, lane;  // first channel of the block; channel and lane in the block
  int count;                           // channels of the block

  __device__ explicit Place(const Scan& p)
      : sequence(static_cast<int>(blockIdx.y)),
        first(static_cast<int>(blockIdx.x) * S::kChannels),
        channel(static_cast<int>(threadIdx.x) / S::kLanes),
        lane(static_cast<int>(threadIdx.x) % S::kLanes),
        count(min(S::kChannels, static_cast<int>(p.channels) - first)) {}
  __device__ bool inside() const { return channel < count; }
  __device__ int64_t row(const Scan& p, int64_t t) const { return sequence * p.length + t; }
  /// Index of this thread's first state in [batch, channels, states].
  __device__ int64_t state(const Scan& p, int64_t batch) const {
    return (batch * p.channels + first + channel) * kS + lane * S::kN;
  }
};

/// Copies tokens [begin, begin + tokens) to shared memory. Missing channels and tokens become 0.
template <class T, int kS>
__device__ void read_chunk(const Scan& p, const Place<kS>& at, int64_t begin, int tokens,
                           Chunk<kS>& to) {
  constexpr int kChannels = Sizes<kS>::kChannels;
  const T *u = static_cast<const T*>(p.u), *delta = static_cast<const T*>(p.delta);
  const T *b = static_cast<const T*>(p.b), *c = static_cast<const T*>(p.c);
#pragma unroll
  for (int i = threadIdx.x; i < kChunk * kChannels; i += kThreads) {
    const int t = i / kChannels, e = i % kChannels;
    const bool real = t < tokens && e < at.count;
    const int64_t row = at.row(p, begin + t);
    to.u[t][e] = real ? widen(u[row * p.u_stride + at.first + e]) : 0.0f;
    to.delta[t][e] = real ? softplus(widen(delta[row * p.delta_stride + at.first + e])) : 0.0f;
  }
  for (int i = threadIdx.x; i < kChunk * kS; i += kThreads) {
    const int t = i / kS, n = i % kS;
    const int64_t row = at.row(p, begin + t);
    to.b[t][n] = t < tokens ? widen(b[row * p.b_stride + n]) : 0.0f;
    to.c[t][n] = t < tokens ? widen(c[row * p.c_stride + n]) : 0.0f;
  }
}

/// Sums over the lanes of a channel. All of them get the sum.
template <int kS>
__device__ float over_lanes(float x) {
#pragma unroll
  for (int step = 1; step < Sizes<kS>::kLanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline bool starts_at(const Scan& p, int64_t row) {
  return p.starts != nullptr && p.starts[row] != 0;
}

}  // namespace diffattn::cuda::scan
