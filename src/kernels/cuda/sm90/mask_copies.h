// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "diffattn/kernels/params.h"

/// Grid sizes of the kernels that convert a mask tensor into words (mask_words.h) or biases
/// (mask_biases.h). Heads and batch entries that share a mask (stride 0) share one copy.
namespace diffattn::cuda::sm90 {

inline constexpr int kCopyThreads = 256;

/// Returns count / size, rounded up.
inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline int64_t mask_heads(const Problem& problem) {
  return problem.mask.strides.head == 0 ? 1 : problem.heads;
}
inline int64_t mask_batch(const Problem& problem) {
  return problem.mask.strides.batch == 0 ? 1 : problem.batch;
}

/// Returns a grid with `threads` threads in x for each head (y) and batch entry (z) of the copy.
inline dim3 blocks_for(const Problem& problem, int64_t threads) {
  return {static_cast<unsigned>(ceil_div(threads, kCopyThreads)),
          static_cast<unsigned>(mask_heads(problem)), static_cast<unsigned>(mask_batch(problem))};
}

}  // namespace diffattn::cuda::sm90
