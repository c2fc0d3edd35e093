// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "diffattn/kernels/params.h"

namespace diffattn::cuda::sm90 {

/// A tensor [B, L, H, W] of 16-bit elements, W a multiple of 64. TMA sees it with five dimensions,
/// innermost first: 64 elements, H, L, W / 64 column blocks, B.
struct BoxedTensor {
  View<const void> view;
  int64_t batch;  // 1 for a packed tensor
  int64_t rows;   // L
  int64_t heads;
  int64_t width;  // W
};

/// True if TMA can address the tensor: the data pointer is 16-byte aligned, L >= 1, W is a multiple
/// of 64, and strides are positive multiples of 16 bytes, below 2^40 bytes. The stride of a
/// dimension of size 1 does not matter.
bool can_box(const BoxedTensor& tensor);

/// Returns a tensor map with boxes of `rows` rows of one head and `blocks` column blocks of 64
/// elements. Shared memory holds a box as [block][row][64], with the 128-byte swizzle. TMA reads
/// rows past the end as 0 and does not write them. Throws `Error` if the driver rejects the map.
CUtensorMap tensor_map(Dtype dtype, const BoxedTensor& tensor, int rows, int blocks);

}  // namespace diffattn::cuda::sm90
