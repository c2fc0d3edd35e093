// SPDX-License-Identifier: Apache-2.0
//
// Vector loads, launches and the choice of the type, for the kernels around attention.
#pragma once

#include <string>

#include "diffattn/kernels/error.h"
#include "diffattn/kernels/view.h"
#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {

/// Adjacent elements that a thread loads or stores together.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount > 16 ? 16 : sizeof(T) * kCount) Pack {
  T values[kCount];
};

/// Sums a value over a block of whole warps, in the same order every time. All threads get the sum.
/// `scratch` has 32 floats; two calls in a row need two of them.
__device__ inline float block_sum(float value, float* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  const int warps = static_cast<int>(blockDim.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < warps; ++warp) sum += scratch[warp];
  return sum;
}

/// Throws Error if the launch right before this call failed.
inline void check_layer_launch(const char* kernel, int64_t count) {
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

}  // namespace diffattn::cuda
