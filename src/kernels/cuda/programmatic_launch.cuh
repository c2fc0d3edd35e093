// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch (sm_90 and later): a kernel starts while the previous kernel in the
// stream is still running.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace diffattn::cuda {

/// Launches a kernel, which may start before the previous kernel in the stream has ended if
/// `early`. It must then call `wait_for_previous_kernel` before it reads that kernel's results.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                          size_t smem, cudaStream_t stream, bool early,
                          const Arguments&... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// Does the same for a kernel that also has code for GPUs before sm_90. Code compiled from PTX
/// older than sm_90 has no wait instruction, so it gets an ordinary launch.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel_early_if_supported(void (*kernel)(Parameters...), unsigned blocks,
                                             unsigned threads, size_t smem, cudaStream_t stream,
                                             const Arguments&... arguments) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status != cudaSuccess) return status;
  return launch_kernel(kernel, blocks, threads, smem, stream, attributes.ptxVersion >= 90,
                       arguments...);
}

/// Launches a kernel that may start early, or throws Error.
template <class... Parameters, class... Arguments>
void launch_programmatic(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                         size_t smem, cudaStream_t stream, const Problem& problem, const char* name,
                         const Arguments&... arguments) {
  check(launch_kernel(kernel, blocks, threads, smem, stream, true, arguments...), name, problem);
}

/// The same for `launch_kernel_early_if_supported`.
template <class... Parameters, class... Arguments>
void launch_programmatic_if_supported(void (*kernel)(Parameters...), unsigned blocks,
                                      unsigned threads, size_t smem, cudaStream_t stream,
                                      const Problem& problem, const char* name,
                                      const Arguments&... arguments) {
  check(launch_kernel_early_if_supported(kernel, blocks, threads, smem, stream, arguments...), name,
        problem);
}

}  // namespace diffattn::cuda
