// SPDX-License-Identifier: Apache-2.0
//
// Visibility and mask bias of one score (b, h, m, n). Follows kernels/visible.h.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda {

/// Returns the bias that the mask adds to both maps' scores at offset `at`, in natural units, or
/// -inf if the mask hides the column.
__device__ inline float mask_bias(const Mask& mask, int64_t at) {
  if (mask.kind == MaskKind::kBoolean) {
    return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 0.0f : -INFINITY;
  }
  switch (mask.dtype) {
    case Dtype::kFloat64: return static_cast<float>(static_cast<const double*>(mask.data)[at]);
    case Dtype::kFloat32: return static_cast<const float*>(mask.data)[at];
    case Dtype::kBFloat16: return widen(static_cast<const bfloat16*>(mask.data)[at]);
    case Dtype::kFloat16: return widen(static_cast<const float16*>(mask.data)[at]);
  }
  return 0.0f;
}

/// Converts a bias from natural units to base 2. Large negative finite values, which some callers
/// use instead of -inf, saturate at -FLT_MAX and stay finite. NaN stays NaN.
__device__ inline float bias_to_base_2(float bias) {
  if (bias == -INFINITY) return bias;
  return bias * kLog2E < -FLT_MAX ? -FLT_MAX : bias * kLog2E;
}

/// The mask of one (batch entry, head).
struct HeadMask {
  const Shape& shape;
  const Sequence seq;
  const int64_t head = 0;  // offset of mask element (b, h, 0, 0)

  __device__ HeadMask(const Shape& shape, const Sequence& seq, int b, int h)
      : shape(shape), seq(seq), head(b * shape.mask.strides.batch + h * shape.mask.strides.head) {}

  /// Returns the base-2 bias for both scores of (m, n), or -inf if row m may not see column n or if
  /// m is beyond the sequence.
  __device__ float bias(int m, int n) const {
    const bool inside = m < seq.seq_q && n >= seq.first_visible(m) && n < seq.end_visible(m);
    if (!inside) return -INFINITY;
    if (shape.mask.kind == MaskKind::kNone) return 0.0f;
    const MaskStrides& strides = shape.mask.strides;
    return bias_to_base_2(mask_bias(shape.mask, head + m * strides.row + n * strides.column));
  }

  /// True if no mask applies and every row of [m, end_m) sees every column of [n, end_n).
  __device__ bool all_visible(int m, int end_m, int n, int end_n) const {
    return shape.mask.kind == MaskKind::kNone && n >= seq.first_visible(end_m - 1) &&
           end_n <= seq.end_visible(m);
  }
};

}  // namespace diffattn::cuda
