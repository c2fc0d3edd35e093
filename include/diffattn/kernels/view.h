// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn {

/// Element types of kernel inputs. Kernels accumulate in float, or in double for kFloat64.
enum class Dtype : uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16 };

/// A strided tensor [B, L, H, W] as a kernel sees it: a pointer and three strides in elements.
/// The W elements of one row are adjacent; strides may be 0 (broadcast) or negative, and rows may
/// overlap in inputs. A packed tensor [total, H, W] has `batch_stride` 0. Sizes are in `Problem`.
/// Parameters hold the untyped form `View<void>`; `as<T>()` gives it an element type.
template <class T>
struct View {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t seq_stride = 0;
  int64_t head_stride = 0;

  /// Returns the first element of row (b, l, h).
  T* at(int64_t b, int64_t l, int64_t h) const {
    return data + b * batch_stride + l * seq_stride + h * head_stride;
  }

  template <class U>
  View<U> as() const {
    return {static_cast<U*>(data), batch_stride, seq_stride, head_stride};
  }

  explicit operator bool() const { return data != nullptr; }
};

}  // namespace diffattn
