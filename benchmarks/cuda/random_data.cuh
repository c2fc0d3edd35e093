// SPDX-License-Identifier: Apache-2.0
//
// Random device data for the benchmarks. Zeros would not do: kernels run faster on them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "diffattn/kernels/error.h"
#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw Error(cudaGetErrorString(status));
}

/// Fills data with uniform numbers in [-1.73, 1.73), whose deviation is 1.
template <class T>
__global__ void fill_kernel(T* data, int64_t count, uint64_t seed) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  uint64_t z = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  data[i] = narrow<T>((static_cast<float>(z >> 40) * 0x1p-24f - 0.5f) * 3.4641f);
}

/// Fills data with random numbers, different ones in every call.
template <class T>
void fill(T* data, int64_t count) {
  static uint64_t seed = 0;
  const auto blocks = static_cast<unsigned>((count + 255) / 256);
  fill_kernel<<<blocks, 256, 0, nullptr>>>(data, count, ++seed << 40);
  check(cudaGetLastError());
}

/// Fills data with 0 or 1, each about half of the time.
inline __global__ void fill_bytes_kernel(uint8_t* data, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) data[i] = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u >> 63;
}

inline void fill_bytes(uint8_t* data, int64_t count) {
  fill_bytes_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, nullptr>>>(data, count);
  check(cudaGetLastError());
}

}  // namespace diffattn::cuda
