// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <string>

#include "support/run.h"

/// The CUDA kernels as one more backend of the shared kernel tests. Test memory is page-locked host
/// memory, which kernels read and write through the same pointers; calls wait for the device.
/// DIFFATTN_TEST_CAPABILITY=80 in the environment leaves the portable kernels.
namespace diffattn::testing {

/// Compute capability of device 0, 10 * major + minor; 0 where there is none.
int device_capability();
/// Does the device have what float32's kernels of matrix instructions ask for?
bool has_float_matrix_kernels();

/// Throws `Error` with what went wrong.
void check_cuda(cudaError_t status);

/// The targets of the CUDA backend; none without a GPU.
std::vector<Target> cuda_targets();
/// Those of them in bfloat16 and float16, and the one in float32.
std::vector<Target> half_targets();
std::vector<Target> float_targets();

/// Whether backward may sum dq in any order; false at first.
bool& backward_in_any_order();

/// Whether forward computes out and o a second time, with lse1 and lse2 known; false at first.
bool& forward_again_with_known_lse();

/// How many calls each route has had.
std::map<std::string, int64_t>& forward_routes();
std::map<std::string, int64_t>& backward_routes();

/// Device memory for the length of a scope, filled with NaN.
class Workspace {
 public:
  explicit Workspace(size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace diffattn::testing
