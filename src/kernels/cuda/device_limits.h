// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/check.h"

namespace diffattn::cuda {

/// Returns the shared memory in bytes that one block may opt in to on the current device.
inline int max_smem_bytes(const Problem& problem) {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "current device", problem);
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory of the device", problem);
  return bytes;
}

}  // namespace diffattn::cuda
