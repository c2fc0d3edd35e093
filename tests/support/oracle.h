// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/case.h"
#include "tests/support/matrix.h"

/// An implementation of params.h that shares nothing with src/kernels: whole maps [B, H, M, N], who
/// sees whom asked entry by entry, the softmax gradient from the map and not from the output.
/// With R = long double it is the truth of the double kernels, with R = double of all others.
///
/// Beside every result stands its magnitude: the same sum with every term made positive. Rounding
/// errors are proportional to it, however much of the result cancels.
namespace diffattn::testing {

struct Measured {
  std::vector<double> value, magnitude;

  void resize(int64_t count) {
    value.assign(count, 0.0);
    magnitude.assign(count, 0.0);
  }
};

struct ForwardTruth {
  Measured out, o, o2;             // [rows_q, H, Dv]
  std::vector<double> lse1, lse2;  // [rows_q, H]
};

struct BackwardTruth {
  Measured dq1, dq2;      // [rows_q, H, D]
  Measured dk1, dk2;      // [rows_k, Hkv, D]
  Measured dv;            // [rows_k, Hkv, Dv]
  Measured dlambda;       // lambda's real shape
  Measured dnorm_weight;  // [Dv]
  Measured dmask;         // the mask's real shape
};

/// Head h's rows of a query-shaped and of a key-shaped tensor of batch entry b: [M, width] and
/// [N, width].
template <class T>
Matrix<T> query_rows(const Case& c, const std::vector<double>& values, int64_t b, int64_t h,
                     int64_t width) {
  Matrix<T> rows(c.len_q(b), width);
  const double* const from = values.data() + (c.row_q(b, 0) * c.spec.heads + h) * width;
  for (int64_t m = 0; m < rows.rows; ++m) {
    const double* const row = from + m * c.spec.heads * width;
    for (int64_t d = 0; d < width; ++d) rows.row(m)[d] = static_cast<T>(row[d]);
  }
  return rows;
}
template <class T>
Matrix<T> key_rows(const Case& c, const std::vector<double>& values, int64_t b, int64_t h,
                   int64_t width) {
  Matrix<T> rows(c.len_k(b), width);
  const double* const from =
      values.data() + (c.row_k(b, 0) * c.spec.kv_heads + c.kv_head(h)) * width;
  for (int64_t n = 0; n < rows.rows; ++n) {
    const double* const row = from + n * c.spec.kv_heads * width;
    for (int64_t d = 0; d < width; ++d) rows.row(n)[d] = static_cast<T>(row[d]);
  }
  return rows;
}

template <class R>
class Oracle {
 public:
  explicit Oracle(const Case& given);

  /// May row m of head h see column n? Straight from the definition in params.h.
  bool visible(int64_t b, int64_t h, int64_t m, int64_t n) const;

  /// The columns it sees, in order.
  const std::vector<int64_t>& columns(int64_t b, int64_t h, int64_t m) const {
    return columns_[(b * s.heads + h) * s.seq_q + m];
  }

  R difference(int64_t b, int64_t h, int64_t m, int64_t n) const {
    const int64_t i = entry(b, h, m, n);
    return p1[i] - lambda(b, m, h) * p2[i];
  }

  int64_t entry(int64_t b, int64_t h, int64_t m, int64_t n) const {
    return ((b * s.heads + h) * s.seq_q + m) * s.seq_k + n;
  }

  /// f(b, h, m) for every row there is.
  template <class F>
  void for_each_row(F&& f) const {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t m = 0; m < c.len_q(b); ++m) f(b, h, m);
      }
    }
  }

  R lambda(int64_t b, int64_t m, int64_t h) const {
    return c.values.lambda[c.lambda_index(b, m, h)];
  }

  ForwardTruth forward() const;
  BackwardTruth backward() const;

  const Case& c;
  const Spec& s;
  std::vector<R> p1, p2;           // [B, H, M, N]
  std::vector<double> lse1, lse2;  // [rows_q, H]
  std::vector<int64_t> seen;       // [rows_q, H]: how many columns
  double score_magnitude = 0.0;    // largest sum |q k| |scale| + |mask|

 private:
  /// One row of A = p1 - lambda p2 over the columns it sees, of O and of the norm. Used for one row
  /// after the other: most of a small case's time would go into memory otherwise.
  struct Row {
    std::vector<R> p1, p2, a;
    std::vector<double> p2_size, a_size;
    std::vector<R> o, o2;
    std::vector<double> o_magnitude, o2_magnitude;
    R rstd = 1;
    double rstd_error = 0;  // what a relative error of O's terms does to rstd, relatively
  };
  struct Sums;
  struct HeadGradients;

  double bias(int64_t b, int64_t h, int64_t m, int64_t n) const {
    return s.mask == MaskKind::kNone ? 0.0 : c.values.mask[c.mask_index(b, h, m, n)];
  }
  R weight(int64_t d) const {
    return c.values.norm_weight.empty() ? R(1) : c.values.norm_weight[d];
  }
  int64_t query_row(int64_t b, int64_t m, int64_t h) const { return c.row_q(b, m) * s.heads + h; }
  int64_t key_row(int64_t b, int64_t n, int64_t h) const {
    return c.row_k(b, n) * s.kv_heads + c.kv_head(h);
  }
  void compute_map(int64_t b, int64_t h, bool second);
  void compute_row(int64_t b, int64_t h, int64_t m, const Matrix<R>& v, Row& row) const;
  void store_row(const Row& row, int64_t at, ForwardTruth& truth) const;
  void epilogue_backward(const Row& row, const double* dout, R* d_o, double* size,
                         Measured& dweight) const;

  std::vector<std::vector<int64_t>> columns_;  // [B, H, M]
};

extern template class Oracle<double>;
extern template class Oracle<long double>;

}  // namespace diffattn::testing
