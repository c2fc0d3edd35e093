// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "diffattn/kernels/error.h"
#include "kernels/cuda/programmatic_launch.cuh"

namespace diffattn::cuda::token {

inline void check_step(cudaError_t status, const char* name) {
  if (status == cudaSuccess) return;
  throw Error(std::string(name) + ": " + cudaGetErrorName(status) + ": " +
              cudaGetErrorString(status));
}

inline int device_attribute(cudaDeviceAttr attribute, const char* name) {
  int device = 0, value = 0;
  check_step(cudaGetDevice(&device), "cudaGetDevice");
  check_step(cudaDeviceGetAttribute(&value, attribute, device), name);
  return value;
}

/// Returns the number of SMs of the current device.
inline int sm_count() { return device_attribute(cudaDevAttrMultiProcessorCount, "SM count"); }

/// Returns the shared memory in bytes that a block may have on the current device.
inline int block_smem_bytes() {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, "shared memory of a block");
}

/// Launches a kernel of a step, early if its code has the wait instruction, or throws Error. All
/// kernels of a step ask for the same division of an SM's memory into L1 and shared memory: blocks
/// of kernels that differ in it cannot run on an SM at the same time.
template <class... Parameters, class... Arguments>
void launch_step(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t smem,
                 cudaStream_t stream, const char* name, const Arguments&... arguments) {
  check_step(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             name);
  check_step(launch_kernel_early_if_supported(kernel, blocks, threads, smem, stream, arguments...),
             name);
}

}  // namespace diffattn::cuda::token
