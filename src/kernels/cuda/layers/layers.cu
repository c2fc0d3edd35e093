// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations of a transformer layer:
//
//   swiglu:  y = gate sigmoid(gate) up
//   rotate:  (u, v) -> (u cos - v sin, v cos + u sin) for each pair of elements of a head
//
// Each thread processes 16 bytes of each tensor (rotate: two groups of 4 elements), so that memory
// bandwidth limits the speed. Arithmetic is in float.

#include "kernels/layers.h"

#include <string>

#include "diffattn/kernels/error.h"
#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

template <class T, int kCount>
__global__ void swiglu_kernel(const Pack<T, kCount>* gate, const Pack<T, kCount>* up,
                              Pack<T, kCount>* y, int64_t packs) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, kCount> g = gate[i], u = up[i];
  Pack<T, kCount> result;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = widen(g.values[j]);
    result.values[j] = narrow<T>(x * sigmoid(x) * widen(u.values[j]));
  }
  y[i] = result;
}

template <class T, int kCount>
__global__ void swiglu_backward_kernel(const Pack<T, kCount>* dy, const Pack<T, kCount>* gate,
                                       const Pack<T, kCount>* up, Pack<T, kCount>* dgate,
                                       Pack<T, kCount>* dup, int64_t packs) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, kCount> d = dy[i], g = gate[i], u = up[i];
  Pack<T, kCount> dg, du;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float x = widen(g.values[j]), grad = widen(d.values[j]);
    const float s = sigmoid(x), silu = x * s;
    du.values[j] = narrow<T>(grad * silu);
    dg.values[j] = narrow<T>(grad * widen(u.values[j]) * (s + silu * (1.0f - s)));
  }
  dgate[i] = dg;
  dup[i] = du;
}

/// Rotates elements [4 i, 4 i + 4) of a head with their partners, which lie dim / 2 further on. One
/// thread per group of 4.
template <class T>
__global__ void rotate_kernel(Rotate p) {
  const int64_t quads = p.dim / 8;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= p.tokens * p.heads * quads) return;
  const int64_t quad = index % quads, row = index / quads;
  const int64_t head = row % p.heads, token = row / p.heads;
  const int64_t half = p.dim / 2, table = token % p.table_rows * half + quad * 4;
  const T* x =
      static_cast<const T*>(p.x) + token * p.token_stride + head * p.head_stride + quad * 4;
  T* y = static_cast<T*>(p.y) + row * p.dim + quad * 4;
  const auto a = *reinterpret_cast<const Pack<T, 4>*>(x);
  const auto b = *reinterpret_cast<const Pack<T, 4>*>(x + half);
  const auto cos = *reinterpret_cast<const Pack<float, 4>*>(p.cos + table);
  const auto sin = *reinterpret_cast<const Pack<float, 4>*>(p.sin + table);
  Pack<T, 4> first, second;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float u = widen(a.values[j]), v = widen(b.values[j]);
    const float c = cos.values[j], s = sin.values[j] * p.direction;
    first.values[j] = narrow<T>(u * c - v * s);
    second.values[j] = narrow<T>(v * c + u * s);
  }
  *reinterpret_cast<Pack<T, 4>*>(y) = first;
  *reinterpret_cast<Pack<T, 4>*>(y + half) = second;
}

unsigned blocks_of(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

void check_layer_launch(const char* kernel, int64_t count) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  throw Error(std::string(kernel) + " failed for " + std::to_string(count) +
              " elements: " + cudaGetErrorString(status));
}

/// Calls run(T{}) with the device type T of `dtype`.
template <class Run>
void with_element(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::kFloat32: return run(float{});
    case Dtype::kBFloat16: return run(bfloat16{});
    case Dtype::kFloat16: return run(float16{});
    default: throw Error("layers: dtype: expected float32, bfloat16 or float16");
  }
}

}  // namespace

void swiglu(const void* gate, const void* up, void* y, int64_t count, Dtype dtype, void* stream) {
  if (count == 0) return;
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = 16 / sizeof(T);
    using P = Pack<T, kCount>;
    swiglu_kernel<T, kCount>
        <<<blocks_of(count / kCount), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const P*>(gate), static_cast<const P*>(up), static_cast<P*>(y),
            count / kCount);
  });
  check_layer_launch("swiglu", count);
}

void swiglu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                     int64_t count, Dtype dtype, void* stream) {
  if (count == 0) return;
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = 16 / sizeof(T);
    using P = Pack<T, kCount>;
    swiglu_backward_kernel<T, kCount>
        <<<blocks_of(count / kCount), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const P*>(dy), static_cast<const P*>(gate), static_cast<const P*>(up),
            static_cast<P*>(dgate), static_cast<P*>(dup), count / kCount);
  });
  check_layer_launch("swiglu_backward", count);
}

void rotate(const Rotate& params, void* stream) {
  const int64_t threads = params.tokens * params.heads * (params.dim / 8);
  if (threads == 0) return;
  with_element(params.dtype, [&](auto element) {
    rotate_kernel<decltype(element)>
        <<<blocks_of(threads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  });
  check_layer_launch("rotate", threads * 8);
}

}  // namespace diffattn::cuda
