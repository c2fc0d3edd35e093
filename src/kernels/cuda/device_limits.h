// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/check.h"

namespace diffattn::cuda {

/// Shared memory that a block may have on the current device.
inline int max_smem_bytes(const Problem& problem) {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "current device", problem);
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "shared memory of the device", problem);
  return bytes;
}

}  // namespace diffattn::cuda
