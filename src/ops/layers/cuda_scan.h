// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/selective_scan.h"

namespace diffattn::ops {

/// The scan's kernels on a GPU, as function pointers, so that a build without nvcc links.
struct CudaScan {
  void (*forward)(const cuda::Scan& params, void* stream);
  void (*backward)(const cuda::Scan& params, void* stream);
};

/// Returns null in a build without nvcc.
const CudaScan* cuda_scan();

}  // namespace diffattn::ops
