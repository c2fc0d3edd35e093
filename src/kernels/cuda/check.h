// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "diffattn/kernels/error.h"
#include "diffattn/kernels/params.h"

namespace diffattn::cuda {

/// The sizes of a problem in words, for error texts.
inline std::string describe(const Problem& problem) {
  const auto text = [](int64_t size) { return std::to_string(size); };
  return "batch " + text(problem.batch) + ", heads " + text(problem.heads) + ", kv_heads " +
         text(problem.kv_heads) + ", seq_q " + text(problem.seq_q) + ", seq_k " +
         text(problem.seq_k) + ", head_dim " + text(problem.head_dim) + ", value_dim " +
         text(problem.value_dim);
}

/// Throws when `status` is a failure. `kernel` is the kernel's or call's name.
inline void check(cudaError_t status, const char* kernel, const Problem& problem) {
  if (status == cudaSuccess) return;
  throw Error(std::string(kernel) + " failed for " + describe(problem) + ": " +
              cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// Throws when there is no kernel for the problem's type or widths.
void require_taken(const Problem& problem);
/// The same for what works on the maps alone and has no value_dim.
void require_maps_taken(const Problem& problem);

/// To be called right after every launch.
inline void check_launch(const char* kernel, const Problem& problem) {
  check(cudaGetLastError(), kernel, problem);
}

}  // namespace diffattn::cuda
