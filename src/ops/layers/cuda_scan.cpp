// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/cuda_scan.h"

namespace diffattn::ops {

const CudaScan* cuda_scan() {
  static const CudaScan kernels{.forward = cuda::selective_scan,
                                .backward = cuda::selective_scan_backward};
  return &kernels;
}

}  // namespace diffattn::ops
