// SPDX-License-Identifier: Apache-2.0
//
// Which problems the CUDA kernels support, and on which GPUs.

#include <algorithm>

#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"

namespace diffattn::cuda {
namespace {

constexpr int kOldest = 80;  // compute capability 8.0

}  // namespace

int current_capability() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", {});
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute", {});
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute", {});
  return 10 * major + minor;
}

int usable_capability(const Problem& problem) {
  return std::min(current_capability(), problem.max_capability);
}

bool takes(const Problem& problem, int capability) {
  constexpr int64_t kMaxWidth = 256;
  constexpr int64_t kMaxLength = int64_t{1} << 29;  // column + window fits int32
  constexpr int64_t kMaxRows = int64_t{1} << 31;    // one index per (b, m, h)
  const bool width_fits = problem.head_dim >= 1 && problem.head_dim <= kMaxWidth &&
                          problem.value_dim >= 1 && problem.value_dim <= kMaxWidth;
  const bool length_fits = problem.seq_q <= kMaxLength && problem.seq_k <= kMaxLength;
  return capability >= kOldest && problem.noise_group() == 1 && problem.dtype != Dtype::kFloat64 &&
         width_fits && length_fits && problem.batch * problem.heads * problem.seq_q < kMaxRows &&
         problem.batch * problem.kv_heads * problem.seq_k < kMaxRows;
}

void require_taken(const Problem& problem) {
  if (takes(problem, kOldest)) return;
  throw_argument_error("problem",
                       "float32, bfloat16 or float16, widths from 1 to 256, fewer than 2^31 rows",
                       describe(problem));
}

void require_maps_taken(const Problem& problem) {
  Problem maps = problem;
  maps.value_dim = 1;
  require_taken(maps);
}

}  // namespace diffattn::cuda
