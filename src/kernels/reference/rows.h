// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/kernels/params.h"
#include "kernels/with_dtype.h"

namespace diffattn::reference {

/// Returns rows [begin, begin + count) of one head, widened to double: [count, width].
template <class T>
std::vector<double> load_rows(View<const void> view, int64_t b, int64_t begin, int64_t count,
                              int64_t h, int64_t width) {
  std::vector<double> rows(count * width);
  for (int64_t l = 0; l < count; ++l) {
    const T* row = view.as<const T>().at(b, begin + l, h);
    for (int64_t c = 0; c < width; ++c) rows[l * width + c] = widen(row[c]);
  }
  return rows;
}

/// Rounds `width` doubles to T and stores them as one row.
template <class T>
void store_row(View<void> view, int64_t b, int64_t l, int64_t h, const double* values,
               int64_t width) {
  T* row = view.as<T>().at(b, l, h);
  for (int64_t c = 0; c < width; ++c) row[c] = narrow<T>(values[c]);
}

inline double dot(const double* x, const double* y, int64_t width) {
  double sum = 0.0;
  for (int64_t c = 0; c < width; ++c) sum += x[c] * y[c];
  return sum;
}

/// y += a x
inline void add_scaled(double* y, double a, const double* x, int64_t width) {
  for (int64_t c = 0; c < width; ++c) y[c] += a * x[c];
}

}  // namespace diffattn::reference
