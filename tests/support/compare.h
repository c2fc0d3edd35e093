// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/tensor.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {

/// Returns 2^exponent, for exponents down to that of the smallest subnormal double.
inline double power_of_two(int exponent) {
  const uint64_t bits =
      exponent >= -1022 ? static_cast<uint64_t>(exponent + 1023) << 52 : 1ull << (exponent + 1074);
  return std::bit_cast<double>(bits);
}

/// Returns the distance from |value| to the next larger number of that type.
inline double ulp(Dtype dtype, double value) {
  struct Format {
    int precision, smallest_exponent;  // of a normal number
  };
  const auto [precision, smallest] = [&]() -> Format {
    switch (dtype) {
      case Dtype::kFloat64: return {53, -1022};
      case Dtype::kFloat32: return {24, -126};
      case Dtype::kBFloat16: return {8, -126};
      case Dtype::kFloat16: return {11, -14};
    }
    return {53, -1022};
  }();
  if (!std::isfinite(value)) return 0.0;
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7ff) - 1023;
  return power_of_two(std::max(exponent, smallest) - precision + 1);
}

/// True if both are NaN, or the same infinity, or both finite.
inline bool same_kind(double x, double y) {
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  if (std::isinf(x) || std::isinf(y)) return x == y;
  return true;
}

/// The distance of a result from the truth, and its worst element.
struct Comparison {
  int64_t count = 0;
  int64_t worst = -1;        // element of the largest |error| / bound
  double worst_share = 0.0;  // its |error| / bound; above 1 is a failure
  double got = 0.0, want = 0.0, bound = 0.0;
  int64_t wrong_kind = -1;  // first element where same_kind() is false, or -1
  double max_error = 0.0, mean_error = 0.0;
  double relative_frobenius = 0.0;

  bool ok() const { return wrong_kind < 0 && worst_share <= 1.0; }
};

/// Compares two tensors. `bound(i)`: the largest |got[i] - want[i]| allowed.
template <class Bound>
Comparison compare(const std::vector<double>& got, const std::vector<double>& want, Bound&& bound) {
  Comparison result;
  result.count = static_cast<int64_t>(want.size());
  double sum = 0.0, squares = 0.0, norm = 0.0;
  for (int64_t i = 0; i < result.count; ++i) {
    if (!same_kind(got[i], want[i])) {
      if (result.wrong_kind < 0) {
        result.wrong_kind = i;
        result.got = got[i];
        result.want = want[i];
      }
      continue;
    }
    if (!std::isfinite(want[i])) continue;
    const double error = std::abs(got[i] - want[i]), limit = bound(i);
    result.max_error = std::max(result.max_error, error);
    sum += error;
    squares += error * error;
    norm += want[i] * want[i];
    const double share = error == 0.0 ? 0.0 : error / limit;
    if (!(share <= result.worst_share) && result.wrong_kind < 0) {
      result.worst = i;
      result.worst_share = std::isnan(share) ? std::numeric_limits<double>::infinity() : share;
      result.got = got[i];
      result.want = want[i];
      result.bound = limit;
    }
  }
  if (result.count > 0) result.mean_error = sum / static_cast<double>(result.count);
  if (norm > 0.0) result.relative_frobenius = std::sqrt(squares / norm);
  return result;
}

/// Returns a dense index as text, such as "[1, 3, 0, 5]".
inline std::string place(int64_t index, const Dims& dims) {
  std::ostringstream out;
  const int64_t width = std::max<int64_t>(1, dims.width), heads = std::max<int64_t>(1, dims.heads);
  const int64_t seq = std::max<int64_t>(1, dims.seq);
  out << "[" << index / (width * heads * seq) << ", " << index / (width * heads) % seq << ", "
      << index / width % heads << ", " << index % width << "]";
  return out.str();
}

inline std::string describe(const Comparison& result, const Dims& dims) {
  std::ostringstream out;
  out.precision(17);
  if (result.wrong_kind >= 0) {
    out << "element " << place(result.wrong_kind, dims) << ": got " << result.got << ", want "
        << result.want;
  } else {
    out << "worst element " << place(result.worst, dims) << ": got " << result.got << ", want "
        << result.want << ", |difference| " << std::abs(result.got - result.want) << ", bound "
        << result.bound;
  }
  out.precision(3);
  out << "; max error " << result.max_error << ", mean " << result.mean_error
      << ", relative Frobenius " << result.relative_frobenius;
  return out.str();
}

/// For EXPECT_TRUE: succeeds if every element is within the same bound.
inline ::testing::AssertionResult all_close(const std::vector<double>& got,
                                            const std::vector<double>& want, double bound,
                                            const Dims& dims) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, want " << want.size();
  }
  const Comparison result = compare(got, want, [bound](int64_t) { return bound; });
  if (result.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << describe(result, dims);
}

/// For EXPECT_TRUE: succeeds if all bits are equal (NaN equals NaN; +0 and -0 differ).
inline ::testing::AssertionResult same_bits(const std::vector<double>& got,
                                            const std::vector<double>& want, const Dims& dims) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, want " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
    if (both_nan || (got[i] == want[i] && std::signbit(got[i]) == std::signbit(want[i]))) continue;
    ::testing::AssertionResult failure = ::testing::AssertionFailure();
    failure << "element " << place(static_cast<int64_t>(i), dims) << ": got " << std::hexfloat
            << got[i] << ", want " << want[i];
    return failure;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace diffattn::testing
