// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch (sm_90 and later): a kernel starts while the previous kernel in the
// stream is still running.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace diffattn::cuda {

/// Launches a kernel that may start before the previous kernel in the stream has ended. The kernel
/// must call `wait_for_previous_kernel` before it reads that kernel's results.
template <class... Parameters, class... Arguments>
void launch_programmatic(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                         size_t smem, cudaStream_t stream, const Problem& problem, const char* name,
                         const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(smem)),
        name, problem);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name, problem);
}

/// Does the same for a kernel that also has code for GPUs before sm_90. Code compiled from PTX
/// older than sm_90 has no wait instruction, so it gets an ordinary launch.
template <class... Parameters, class... Arguments>
void launch_programmatic_if_supported(void (*kernel)(Parameters...), unsigned blocks,
                                      unsigned threads, size_t smem, cudaStream_t stream,
                                      const Problem& problem, const char* name,
                                      const Arguments&... arguments) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), name, problem);
  if (attributes.ptxVersion >= 90) {
    return launch_programmatic(kernel, blocks, threads, smem, stream, problem, name, arguments...);
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(smem)),
        name, problem);
  kernel<<<blocks, threads, smem, stream>>>(arguments...);
  check_launch(name, problem);
}

}  // namespace diffattn::cuda
