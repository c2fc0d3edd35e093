// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU: y = gate sigmoid(gate) up.
//
// Each thread processes 16 bytes of each tensor, so that memory bandwidth limits the speed.
// Arithmetic is in float.

#include "kernels/layers.h"

#include "kernels/cuda/layers/pack.cuh"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/// Returns the pack of gate and up that belongs to pack i of y: rows of gate and up are `stride`
/// packs apart, rows of y lie side by side.
__device__ inline int64_t source_pack(uint32_t i, uint32_t width, int64_t stride) {
  return int64_t{i / width} * stride + i % width;
}

template <class T, int kCount>
__global__ void swiglu_kernel(Swiglu p, uint32_t width, int64_t stride, int64_t packs) {
  using P = Pack<T, kCount>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t source = source_pack(static_cast<uint32_t>(i), width, stride);
  const P g = static_cast<const P*>(p.gate)[source], u = static_cast<const P*>(p.up)[source];
  P result;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = widen(g.values[j]);
    result.values[j] = narrow<T>(x * sigmoid(x) * widen(u.values[j]));
  }
  static_cast<P*>(p.y)[i] = result;
}

template <class T, int kCount>
__global__ void swiglu_backward_kernel(SwigluBackward p, uint32_t width, int64_t stride,
                                       int64_t packs) {
  using P = Pack<T, kCount>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t source = source_pack(static_cast<uint32_t>(i), width, stride);
  const P d = static_cast<const P*>(p.dy)[i], g = static_cast<const P*>(p.gate)[source],
          u = static_cast<const P*>(p.up)[source];
  P dg, du;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = widen(g.values[j]), grad = widen(d.values[j]);
    const float s = sigmoid(x), silu = x * s;
    du.values[j] = narrow<T>(grad * silu);
    dg.values[j] = narrow<T>(grad * widen(u.values[j]) * (s + silu * (1.0f - s)));
  }
  static_cast<P*>(p.dgate)[source] = dg;
  static_cast<P*>(p.dup)[source] = du;
}

unsigned blocks_of(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

/// Launches kernel<T, packs of 16 bytes> over all packs of y.
template <class Params, class Launch>
void launch_swiglu(const Params& p, const char* name, const Launch& launch) {
  if (p.rows == 0 || p.width == 0) return;
  with_element(p.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = 16 / sizeof(T);
    const int64_t packs = p.rows * p.width / kCount;
    if (packs > int64_t{UINT32_MAX}) throw Error(std::string(name) + ": too many elements");
    launch(element, static_cast<uint32_t>(p.width / kCount), p.stride / kCount, packs);
  });
  check_layer_launch(name, p.rows * p.width);
}

}  // namespace

void swiglu(const Swiglu& params, void* stream) {
  launch_swiglu(params, "swiglu", [&](auto element, uint32_t width, int64_t stride, int64_t packs) {
    using T = decltype(element);
    swiglu_kernel<T, 16 / sizeof(T)>
        <<<blocks_of(packs), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params, width,
                                                                               stride, packs);
  });
}

void swiglu_backward(const SwigluBackward& params, void* stream) {
  launch_swiglu(params, "swiglu_backward",
                [&](auto element, uint32_t width, int64_t stride, int64_t packs) {
                  using T = decltype(element);
                  swiglu_backward_kernel<T, 16 / sizeof(T)>
                      <<<blocks_of(packs), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
                          params, width, stride, packs);
                });
}

}  // namespace diffattn::cuda
