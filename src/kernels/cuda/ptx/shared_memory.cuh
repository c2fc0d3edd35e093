// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores of words and 8x8 matrices by shared-memory address (`smem_address`).
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/barrier.cuh"

namespace diffattn::cuda::ptx {

__device__ inline float load_float(uint32_t smem) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(smem) : "memory");
  return x;
}

__device__ inline uint64_t load_8(uint32_t smem) {
  uint64_t x;
  asm volatile("ld.shared.b64 %0, [%1];\n" : "=l"(x) : "r"(smem) : "memory");
  return x;
}

__device__ inline void store_8(uint32_t smem, uint64_t x) {
  asm volatile("st.shared.b64 [%0], %1;\n" ::"r"(smem), "l"(x) : "memory");
}

/// The lane's addresses for storing four 8x8 matrices, which the warp holds in the layout of
/// `load_matrix_x4`. Uses stmatrix from sm_90 on and four 4-byte stores before.
struct MatrixStore {
  uint32_t first[4];

  /// at(r, i) returns the address of row r of matrix i.
  template <class At>
  __device__ static MatrixStore of(int lane, const At& at) {
#if __CUDA_ARCH__ >= 900
    return {{at(lane % 8, lane / 8)}};
#else
    const int row = lane / 4, word = lane % 4 * 4;
    return {{at(row, 0) + word, at(row, 1) + word, at(row, 2) + word, at(row, 3) + word}};
#endif
  }
  /// Stores the matrices `bytes` beyond the addresses of `at`.
  __device__ void store(uint32_t bytes, const uint32_t (&words)[4]) const {
#if __CUDA_ARCH__ >= 900
    store_matrix_x4(first[0] + bytes, words[0], words[1], words[2], words[3]);
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) store_4(first[i] + bytes, words[i]);
#endif
  }
};

}  // namespace diffattn::cuda::ptx
