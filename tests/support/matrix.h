// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace diffattn::testing {

/// A dense row-major matrix.
template <class T>
struct Matrix {
  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count), columns(column_count), values(row_count * column_count) {}

  T* row(int64_t i) { return values.data() + i * columns; }
  const T* row(int64_t i) const { return values.data() + i * columns; }

  int64_t rows, columns;
  std::vector<T> values;
};

template <class T>
Matrix<T> transposed(const Matrix<T>& matrix) {
  Matrix<T> result(matrix.columns, matrix.rows);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) result.row(j)[i] = matrix.row(i)[j];
  }
  return result;
}

template <class T>
Matrix<double> magnitudes(const Matrix<T>& matrix) {
  Matrix<double> result(matrix.rows, matrix.columns);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    result.values[i] = std::abs(static_cast<double>(matrix.values[i]));
  }
  return result;
}

/// Returns 0, 1, ..., count - 1.
inline std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> list(count);
  std::iota(list.begin(), list.end(), int64_t{0});
  return list;
}

/// The inner loop of every matrix product in oracle.h and naive.h:
///
///   y[j] += sum_i a[i] x[rows[i] * stride + j],   j < width
///
/// It adds terms in order of i and rounds each product and each sum, so that every vector width
/// gives the same bits. T: float, double, long double.
template <class T>
void add_rows(T* y, const T* a, const T* x, int64_t stride, const std::vector<int64_t>& rows,
              int64_t width);

/// The same, and also size[j] += sum_i a_size[i] |x[rows[i] * stride + j]|. T: double, long double.
template <class T>
void add_rows(T* y, double* size, const T* a, const double* a_size, const T* x, int64_t stride,
              const std::vector<int64_t>& rows, int64_t width);

}  // namespace diffattn::testing
