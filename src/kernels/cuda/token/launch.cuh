// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "diffattn/kernels/error.h"

namespace diffattn::cuda::token {

inline void check_step(cudaError_t status, const char* name) {
  if (status == cudaSuccess) return;
  throw Error(std::string(name) + ": " + cudaGetErrorName(status) + ": " +
              cudaGetErrorString(status));
}

/// Returns the number of SMs of the current device.
inline int sm_count() {
  int device = 0, count = 0;
  check_step(cudaGetDevice(&device), "cudaGetDevice");
  check_step(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "SM count");
  return count;
}

/// Launches a kernel that may start before the previous kernel in the stream has ended, on GPUs
/// whose code has the wait instruction (sm_90). Before that it is an ordinary launch.
template <class... Parameters, class... Arguments>
void launch_step(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t smem,
                 cudaStream_t stream, const char* name, const Arguments&... arguments) {
  cudaFuncAttributes attributes{};
  check_step(cudaFuncGetAttributes(&attributes, kernel), name);
  if (smem > 48 * 1024) {
    check_step(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(smem)),
               name);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = attributes.ptxVersion >= 90 ? 1 : 0;
  check_step(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace diffattn::cuda::token
