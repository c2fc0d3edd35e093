// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "diffattn/kernels/params.h"

namespace diffattn::cuda::sm90 {

/// A tensor [B, L, H, W] of 16-bit elements, W a multiple of 64, as the copy engine sees it: five
/// dimensions (64 elements, H, L, W / 64 blocks, B).
struct BoxedTensor {
  View<const void> view;
  int64_t batch;  // 1 for a packed tensor
  int64_t rows;   // L
  int64_t heads;
  int64_t width;
};

/// Can the copy engine address it? Rows and strides must be multiples of 16 bytes, strides positive
/// where there is more than one step, below 2^40 bytes.
bool can_box(const BoxedTensor& tensor);

/// A map whose boxes hold `rows` rows of one head: the first 64 elements of each, then the next 64,
/// `blocks` times, 128-byte swizzled. Rows past the end are read as 0 and not written.
/// Throws `Error` when the driver refuses.
CUtensorMap tensor_map(Dtype dtype, const BoxedTensor& tensor, int rows, int blocks);

}  // namespace diffattn::cuda::sm90
