// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/case.h"
#include "tests/support/matrix.h"

/// An implementation of params.h that shares no code with src/kernels. It holds whole maps
/// [B, H, M, N], evaluates visibility entry by entry, and computes the softmax gradient from the
/// map instead of the output. R = long double is the truth for the float64 kernels, R = double for
/// all others.
///
/// Every result comes with its magnitude: the same sum over the absolute values of its terms.
/// Rounding errors are proportional to the magnitude, however much of the result cancels.
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
  Measured dq1;           // [rows_q, H, D]
  Measured dq2;           // [rows_q, noise heads, D]
  Measured dk1, dk2;      // [rows_k, Hkv, D]
  Measured dv;            // [rows_k, Hkv, Dv]
  Measured dlambda;       // shape of lambda before broadcasting
  Measured dnorm_weight;  // [Dv]
  Measured dmask;         // shape of the mask before broadcasting
};

/// Returns the rows of batch entry b and head h: [M, width] of q1, q2 or dout, [N, width] of a
/// key-shaped tensor.
template <class T>
Matrix<T> query_rows(const Case& c, const std::vector<double>& values, int64_t b, int64_t h,
                     int64_t width) {
  const bool noise = &values == &c.values.q2;
  const int64_t heads = noise ? c.noise_heads() : c.spec.heads;
  const int64_t head = noise ? c.noise_head(h) : h;
  Matrix<T> rows(c.len_q(b), width);
  const double* const from = values.data() + (c.row_q(b, 0) * heads + head) * width;
  for (int64_t m = 0; m < rows.rows; ++m) {
    const double* const row = from + m * heads * width;
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

  /// True if row m of head h sees column n, by the definition in params.h.
  bool visible(int64_t b, int64_t h, int64_t m, int64_t n) const;

  /// Returns the columns that the row sees, in order.
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

  /// Calls f(b, h, m) for every row.
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
  std::vector<int64_t> seen;       // [rows_q, H]: number of columns that the row sees
  double score_magnitude = 0.0;    // largest sum |q k| |scale| + |mask|

 private:
  /// One row of A = p1 - lambda p2 over the columns it sees, and of O and the norm. One instance
  /// serves all rows, because allocations would take most of the time of a small case.
  struct Row {
    std::vector<R> p1, p2, a;
    std::vector<double> p2_size, a_size;
    std::vector<R> o, o2;
    std::vector<double> o_magnitude, o2_magnitude;
    R rstd = 1;
    double rstd_error = 0;  // relative error of rstd per relative error of the terms of O
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
