// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>

#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/params.h"
#include "ops/glue/arguments.h"

/// Views of tensors for the kernels.
namespace diffattn::ops {

inline Dtype dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat64: return Dtype::kFloat64;
    case torch::kBFloat16: return Dtype::kBFloat16;
    case torch::kFloat16: return Dtype::kFloat16;
    default: return Dtype::kFloat32;
  }
}

inline View<const void> view_of(const Tensor& t) {  // [B, L, H, W] or packed [total, H, W]
  if (t.dim() == 3) return {t.const_data_ptr(), 0, t.stride(0), t.stride(1)};
  return {t.const_data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}

inline View<void> mutable_view_of(const Tensor& t) {
  if (t.dim() == 3) return {t.mutable_data_ptr(), 0, t.stride(0), t.stride(1)};
  return {t.mutable_data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}

/// Views one number per row, [B, H, M] or packed [H, total], with indices (b, m, h).
inline View<void> mutable_rows_of(const Tensor& t) {
  if (t.dim() == 2) return {t.mutable_data_ptr(), 0, t.stride(1), t.stride(0)};
  return {t.mutable_data_ptr(), t.stride(0), t.stride(2), t.stride(1)};
}
inline View<const void> rows_of(const Tensor& t) {
  if (t.dim() == 2) return {t.const_data_ptr(), 0, t.stride(1), t.stride(0)};
  return {t.const_data_ptr(), t.stride(0), t.stride(2), t.stride(1)};
}

/// Views lambda or its gradient with indices (b, m, h): one number, [H], [B, M, H] or packed
/// [total, H].
template <class Void>
View<Void> lambda_view(Void* data, const Tensor& t, int64_t heads) {
  if (t.dim() == 0 || (t.dim() == 1 && t.size(0) != heads)) return {data, 0, 0, 0};
  if (t.dim() == 1) return {data, 0, 0, t.stride(0)};
  if (t.dim() == 2) return {data, 0, t.stride(0), t.stride(1)};
  return {data, t.stride(0), t.stride(1), t.stride(2)};
}

/// Returns the strides of a tensor that broadcasts to [B, H, M, N]: 0 on axes that are absent or of
/// size 1.
inline MaskStrides mask_strides(const Tensor& t) {
  std::array<int64_t, 4> stride{};
  for (int64_t i = 0; i < t.dim(); ++i) {
    stride[4 - t.dim() + i] = t.size(i) == 1 ? 0 : t.stride(i);
  }
  return {stride[0], stride[1], stride[2], stride[3]};
}

inline Mask mask_of(const OptionalTensor& t) {
  if (!t) return {};
  const bool boolean = t->scalar_type() == torch::kBool;
  return {boolean ? MaskKind::kBoolean : MaskKind::kAdditive, dtype_of(*t), t->const_data_ptr(),
          mask_strides(*t)};
}

/// Returns torch's current stream on a device, through its device-generic interface.
inline cuda::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace diffattn::ops
