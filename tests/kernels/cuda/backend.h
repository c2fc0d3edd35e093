// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <string>

#include "tests/support/run.h"

/// The CUDA kernels as one more backend of the shared kernel tests. Test memory is page-locked host
/// memory, which kernels read and write through the same pointers; calls wait for the device.
/// The environment variable DIFFATTN_TEST_CAPABILITY=80 restricts the tests to the sm80 kernels.
namespace diffattn::testing {

/// Returns the compute capability of device 0, 10 * major + minor; 0 without a GPU.
int device_capability();
/// Returns the newest compute capability whose kernels the tests may use: DIFFATTN_TEST_CAPABILITY,
/// by default no limit. Tests that call kernels directly copy it to `Problem::max_capability`.
int capability_limit();
/// Returns the compute capability of device 0, capped at that limit.
int usable_capability();
/// True if the float32 kernels that use tensor cores run on the device.
bool has_float_matrix_kernels();

/// Sets capability_limit() for the length of a scope.
class CapabilityLimit {
 public:
  explicit CapabilityLimit(int capability);
  ~CapabilityLimit();
  CapabilityLimit(const CapabilityLimit&) = delete;
  CapabilityLimit& operator=(const CapabilityLimit&) = delete;

 private:
  int before_;
};

/// Throws `Error` with the CUDA error text unless the call succeeded.
void check_cuda(cudaError_t status);

/// Returns the targets of the CUDA backend; none without a GPU.
std::vector<Target> cuda_targets();
/// Return the CUDA targets in bfloat16 and float16, and the one in float32.
std::vector<Target> half_targets();
std::vector<Target> float_targets();

/// If true, backward calls may sum dq in any order. Initially false.
bool& backward_in_any_order();

/// If true, every forward is followed by a recompute from its lse1 and lse2. Initially false.
bool& forward_again_with_known_lse();

/// The number of calls of each route.
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
