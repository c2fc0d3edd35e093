// SPDX-License-Identifier: Apache-2.0
//
// Launches that overlap the end of the kernel before (programmatic dependent launch, sm_90).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace diffattn::cuda {

/// Launches a kernel that may start before the one ahead of it in the stream has ended; it waits
/// for that one itself (`wait_for_previous_kernel`).
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t smem,
                  cudaStream_t stream, const Problem& problem, const char* name,
                  const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(smem)),
        name, problem);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name, problem);
}

/// The same for a kernel that is compiled for older GPUs too: where the code that runs on the
/// current device cannot wait (made from an older PTX), it starts after the one ahead of it.
template <class... Parameters, class... Arguments>
void launch_early_if_possible(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                              size_t smem, cudaStream_t stream, const Problem& problem,
                              const char* name, const Arguments&... arguments) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), name, problem);
  if (attributes.ptxVersion >= 90) {
    return launch_early(kernel, blocks, threads, smem, stream, problem, name, arguments...);
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(smem)),
        name, problem);
  kernel<<<blocks, threads, smem, stream>>>(arguments...);
  check_launch(name, problem);
}

}  // namespace diffattn::cuda
