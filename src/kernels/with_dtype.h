// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "diffattn/kernels/half.h"
#include "diffattn/kernels/view.h"

namespace diffattn {

/// The accumulator type of storage type T, also used for lse, lambda, norm weight and statistics.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls `body.template operator()<T>()` with the C++ type of `dtype`.
template <class Body>
void with_dtype(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat64: return body.template operator()<double>();
    case Dtype::kFloat32: return body.template operator()<float>();
    case Dtype::kBFloat16: return body.template operator()<BFloat16>();
    case Dtype::kFloat16: return body.template operator()<Float16>();
  }
}

template <class T>
double widen(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

template <class T>
T narrow(double value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

}  // namespace diffattn
