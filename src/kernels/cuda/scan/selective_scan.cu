// SPDX-License-Identifier: Apache-2.0
//
// The selective scan on a GPU (equations in selective_scan.h). A block has up to 128 channels of
// one sequence and takes its tokens in order, in chunks that it copies to shared memory; states
// stay in registers. The forward pass leaves the state before each chunk in memory. The backward
// pass takes the chunks in reverse and recomputes the states within one.
//
// dB and dC are sums over channels: a block adds up its own in a fixed order and writes them as one
// part.

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/cuda/scan/channel.cuh"

namespace diffattn::cuda {
namespace scan {

template <class T, int kS>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Scan p) {
  using S = Sizes<kS>;
  __shared__ Chunk<kS> chunk;
  __shared__ float y_chunk[kChunk][S::kChannels];
  const Place<kS> at(p);
  float a[S::kN], s[S::kN];
#pragma unroll
  for (int n = 0; n < S::kN; ++n) {
    a[n] = at.inside() ? p.a[at.state(p, 0) + n] * kLog2E : 0.0f;
    s[n] = at.inside() && p.initial != nullptr ? p.initial[at.state(p, at.sequence) + n] : 0.0f;
  }
  const float d = at.inside() ? p.d[at.first + at.channel] : 0.0f;
  const int64_t chunks = (p.length + kChunk - 1) / kChunk;
  T* y = static_cast<T*>(p.y);
  for (int64_t index = 0; index < chunks; ++index) {
    const int64_t begin = index * kChunk;
    const int tokens = static_cast<int>(min(static_cast<int64_t>(kChunk), p.length - begin));
    if (p.kept != nullptr && at.inside()) {
#pragma unroll
      for (int n = 0; n < S::kN; ++n) p.kept[at.state(p, at.sequence * chunks + index) + n] = s[n];
    }
    __syncthreads();
    read_chunk<T>(p, at, begin, tokens, chunk);
    __syncthreads();
#pragma unroll 4
    for (int t = 0; t < tokens; ++t) {
      const float u = chunk.u[t][at.channel], dt = chunk.delta[t][at.channel];
      const bool start = starts_at(p, at.row(p, begin + t));
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < S::kN; ++n) {
        const float old = start ? 0.0f : s[n];
        s[n] = ptx::exp2(dt * a[n]) * old + dt * u * chunk.b[t][at.lane * S::kN + n];  // (2)
        sum += chunk.c[t][at.lane * S::kN + n] * s[n];                                 // (3)
      }
      sum = over_lanes<kS>(sum);
      if (at.lane == 0) y_chunk[t][at.channel] = sum + d * u;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * S::kChannels; i += kThreads) {
      const int t = i / S::kChannels, e = i % S::kChannels;
      if (e >= at.count) continue;
      y[at.row(p, begin + t) * p.channels + at.first + e] = narrow<T>(y_chunk[t][e]);
    }
  }
  if (!at.inside()) return;
#pragma unroll
  for (int n = 0; n < S::kN; ++n) p.last[at.state(p, at.sequence) + n] = s[n];
}

/// The sums of one state number over the channels of a warp. The lanes of its first channel get
/// them.
template <int kS>
__device__ float over_channels(float x) {
#pragma unroll
  for (int step = Sizes<kS>::kLanes; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <class T, int kS>
__global__ void __launch_bounds__(kThreads) backward_kernel(const Scan p) {
  using S = Sizes<kS>;
  constexpr int kWarps = kThreads / 32;
  __shared__ Chunk<kS> chunk;
  __shared__ float dy_chunk[kChunk][S::kChannels];
  __shared__ float db_parts[kWarps][kChunk][kS], dc_parts[kWarps][kChunk][kS];
  const Place<kS> at(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool first_channel = static_cast<int>(threadIdx.x) % 32 < S::kLanes;
  float a[S::kN], g[S::kN], da[S::kN];
#pragma unroll
  for (int n = 0; n < S::kN; ++n) {
    a[n] = at.inside() ? p.a[at.state(p, 0) + n] : 0.0f;
    g[n] = da[n] = 0.0f;
  }
  const float d = at.inside() ? p.d[at.first + at.channel] : 0.0f;
  float dd = 0.0f;
  const int64_t chunks = (p.length + kChunk - 1) / kChunk;
  const int64_t parts = static_cast<int64_t>(blockIdx.x) * p.batch * p.length * kS;
  const T* dy = static_cast<const T*>(p.dy);
  T *du = static_cast<T*>(p.du), *ddelta = static_cast<T*>(p.ddelta);
  for (int64_t index = chunks - 1; index >= 0; --index) {
    const int64_t begin = index * kChunk;
    const int tokens = static_cast<int>(min(static_cast<int64_t>(kChunk), p.length - begin));
    __syncthreads();
    read_chunk<T>(p, at, begin, tokens, chunk);
    for (int i = threadIdx.x; i < kChunk * S::kChannels; i += kThreads) {
      const int t = i / S::kChannels, e = i % S::kChannels;
      const int64_t from = at.row(p, begin + t) * p.channels + at.first + e;
      dy_chunk[t][e] = t < tokens && e < at.count ? widen(dy[from]) : 0.0f;
    }
    __syncthreads();
    // The states before each token. Tokens behind the end leave the state as it is.
    float before[kChunk][S::kN], s[S::kN];
#pragma unroll
    for (int n = 0; n < S::kN; ++n) {
      s[n] = at.inside() ? p.kept[at.state(p, at.sequence * chunks + index) + n] : 0.0f;
    }
#pragma unroll
    for (int t = 0; t < kChunk; ++t) {
      const float u = chunk.u[t][at.channel], dt = chunk.delta[t][at.channel];
      const bool start = t < tokens && starts_at(p, at.row(p, begin + t));
#pragma unroll
      for (int n = 0; n < S::kN; ++n) {
        before[t][n] = start ? 0.0f : s[n];
        s[n] =
            ptx::exp2(dt * a[n] * kLog2E) * before[t][n] + dt * u * chunk.b[t][at.lane * S::kN + n];
      }
    }
#pragma unroll
    for (int t = kChunk - 1; t >= 0; --t) {
      const float u = chunk.u[t][at.channel], dt = chunk.delta[t][at.channel];
      const float dout = dy_chunk[t][at.channel];
      const int64_t row = at.row(p, begin + t);
      const bool start = t < tokens && starts_at(p, row);
      float to_input = 0.0f, to_step = 0.0f;
#pragma unroll
      for (int n = 0; n < S::kN; ++n) {
        const float b = chunk.b[t][at.lane * S::kN + n], c = chunk.c[t][at.lane * S::kN + n];
        const float decay = ptx::exp2(dt * a[n] * kLog2E), old = decay * before[t][n];
        const float x = g[n] + dout * c;                 // (4)
        const float db = over_channels<kS>(dt * u * x);  // (5)
        const float dc = over_channels<kS>(dout * (old + dt * u * b));
        if (first_channel) {
          db_parts[warp][t][at.lane * S::kN + n] = db;
          dc_parts[warp][t][at.lane * S::kN + n] = dc;
        }
        to_input += x * b;                    // (6)
        to_step += x * (a[n] * old + u * b);  // (7)
        da[n] += dt * x * old;                // (8)
        g[n] = start ? 0.0f : x * decay;
      }
      to_input = over_lanes<kS>(to_input);
      to_step = over_lanes<kS>(to_step);
      dd += dout * u;
      if (t < tokens && at.inside() && at.lane == 0) {
        const int64_t to = row * p.channels + at.first + at.channel;
        // dt = softplus(delta), so sigmoid(delta) = 1 - exp(-dt).
        du[to] = narrow<T>(d * dout + dt * to_input);
        ddelta[to] = narrow<T>(to_step * -expm1f(-dt));
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * kS; i += kThreads) {
      const int t = i / kS, n = i % kS;
      float db = 0.0f, dc = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        db += db_parts[w][t][n];
        dc += dc_parts[w][t][n];
      }
      const int64_t to = parts + at.row(p, begin + t) * kS + n;
      p.db[to] = db;
      p.dc[to] = dc;
    }
  }
  if (!at.inside()) return;
#pragma unroll
  for (int n = 0; n < S::kN; ++n) p.da[at.state(p, at.sequence) + n] = da[n];
  if (at.lane == 0) p.dd[at.sequence * p.channels + at.first + at.channel] = dd;
}

/// Calls run(T{}, integral_constant<int, S>{}) for the type and the number of states.
template <class Run>
void with_states(const Scan& p, const Run& run) {
  with_element(p.dtype, [&](auto element) {
    switch (p.states) {
      case 8: return run(element, std::integral_constant<int, 8>{});
      case 16: return run(element, std::integral_constant<int, 16>{});
      case 32: return run(element, std::integral_constant<int, 32>{});
      case 64: return run(element, std::integral_constant<int, 64>{});
      default: throw Error("selective_scan: states: expected 8, 16, 32 or 64");
    }
  });
}

dim3 grid_of(const Scan& p) {
  return {static_cast<unsigned>(scan_blocks(p.channels, p.states)), static_cast<unsigned>(p.batch)};
}

}  // namespace scan

void selective_scan(const Scan& params, void* stream) {
  scan::with_states(params, [&](auto element, auto states) {
    scan::forward_kernel<decltype(element), states()>
        <<<scan::grid_of(params), scan::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  });
  check_layer_launch("selective_scan", params.batch * params.length * params.channels);
}

void selective_scan_backward(const Scan& params, void* stream) {
  scan::with_states(params, [&](auto element, auto states) {
    scan::backward_kernel<decltype(element), states()>
        <<<scan::grid_of(params), scan::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  });
  check_layer_launch("selective_scan_backward", params.batch * params.length * params.channels);
}

}  // namespace diffattn::cuda
