// SPDX-License-Identifier: Apache-2.0
#include "tests/support/matrix.h"

namespace diffattn::testing {
namespace {

struct Terms {
  const int64_t* rows;
  size_t count;
  int64_t stride, width;
};

double size_of(double x) { return std::abs(x); }
double size_of(long double x) { return static_cast<double>(std::abs(x)); }

/// Adds four rows at a time, so that sums are read and written once for four terms.
template <class T>
[[gnu::always_inline]] inline void add(T* __restrict y, const T* a, const T* x,
                                       const Terms& terms) {
  const auto [rows, count, stride, width] = terms;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const T a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3];
    const T *x0 = x + rows[i] * stride, *x1 = x + rows[i + 1] * stride;
    const T *x2 = x + rows[i + 2] * stride, *x3 = x + rows[i + 3] * stride;
    for (int64_t j = 0; j < width; ++j) {
      y[j] = (((y[j] + a0 * x0[j]) + a1 * x1[j]) + a2 * x2[j]) + a3 * x3[j];
    }
  }
  for (; i < count; ++i) {
    const T* const row = x + rows[i] * stride;
    for (int64_t j = 0; j < width; ++j) y[j] += a[i] * row[j];
  }
}

template <class T>
[[gnu::always_inline]] inline void add(T* __restrict y, double* __restrict size, const T* a,
                                       const double* a_size, const T* x, const Terms& terms) {
  const auto [rows, count, stride, width] = terms;
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const T a0 = a[i], a1 = a[i + 1], a2 = a[i + 2], a3 = a[i + 3];
    const double s0 = a_size[i], s1 = a_size[i + 1], s2 = a_size[i + 2], s3 = a_size[i + 3];
    const T *x0 = x + rows[i] * stride, *x1 = x + rows[i + 1] * stride;
    const T *x2 = x + rows[i + 2] * stride, *x3 = x + rows[i + 3] * stride;
    for (int64_t j = 0; j < width; ++j) {
      y[j] = (((y[j] + a0 * x0[j]) + a1 * x1[j]) + a2 * x2[j]) + a3 * x3[j];
      size[j] = (((size[j] + s0 * size_of(x0[j])) + s1 * size_of(x1[j])) + s2 * size_of(x2[j])) +
                s3 * size_of(x3[j]);
    }
  }
  for (; i < count; ++i) {
    const T* const row = x + rows[i] * stride;
    for (int64_t j = 0; j < width; ++j) {
      y[j] += a[i] * row[j];
      size[j] += a_size[i] * size_of(row[j]);
    }
  }
}

template <class... Args>
[[gnu::target("avx512f")]] void add_avx512(const Args&... args) {
  add(args...);
}

template <class... Args>
[[gnu::target("avx2")]] void add_avx2(const Args&... args) {
  add(args...);
}

template <class... Args>
void add_anywhere(const Args&... args) {
  static const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx512) return add_avx512(args...);
  if (avx2) return add_avx2(args...);
  add(args...);
}

}  // namespace

template <class T>
void add_rows(T* y, const T* a, const T* x, int64_t stride, const std::vector<int64_t>& rows,
              int64_t width) {
  add_anywhere(y, a, x, Terms{rows.data(), rows.size(), stride, width});
}

template <class T>
void add_rows(T* y, double* size, const T* a, const double* a_size, const T* x, int64_t stride,
              const std::vector<int64_t>& rows, int64_t width) {
  add_anywhere(y, size, a, a_size, x, Terms{rows.data(), rows.size(), stride, width});
}

template void add_rows(float*, const float*, const float*, int64_t, const std::vector<int64_t>&,
                       int64_t);
template void add_rows(double*, const double*, const double*, int64_t, const std::vector<int64_t>&,
                       int64_t);
template void add_rows(double*, double*, const double*, const double*, const double*, int64_t,
                       const std::vector<int64_t>&, int64_t);
template void add_rows(long double*, const long double*, const long double*, int64_t,
                       const std::vector<int64_t>&, int64_t);
template void add_rows(long double*, double*, const long double*, const double*, const long double*,
                       int64_t, const std::vector<int64_t>&, int64_t);

}  // namespace diffattn::testing
