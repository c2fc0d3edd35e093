// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "diffattn/kernels/error.h"
#include "diffattn/kernels/params.h"

namespace diffattn::cuda {

/// Returns the problem's sizes as text for error messages.
inline std::string describe(const Problem& problem) {
  const auto text = [](int64_t size) { return std::to_string(size); };
  return "batch " + text(problem.batch) + ", heads " + text(problem.heads) + ", kv_heads " +
         text(problem.kv_heads) + ", seq_q " + text(problem.seq_q) + ", seq_k " +
         text(problem.seq_k) + ", head_dim " + text(problem.head_dim) + ", value_dim " +
         text(problem.value_dim);
}

/// Throws Error if `status` is not cudaSuccess. `kernel` names the kernel or CUDA call.
inline void check(cudaError_t status, const char* kernel, const Problem& problem) {
  if (status == cudaSuccess) return;
  throw Error(std::string(kernel) + " failed for " + describe(problem) + ": " +
              cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// Throws Error if no kernel supports the problem's dtype, head_dim or value_dim.
void require_taken(const Problem& problem);
/// Does the same for operations without values (`stats`, `map`), which ignore value_dim.
void require_maps_taken(const Problem& problem);

/// Throws Error if the launch right before this call failed.
inline void check_launch(const char* kernel, const Problem& problem) {
  check(cudaGetLastError(), kernel, problem);
}

}  // namespace diffattn::cuda
