// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "case.h"

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

template <class R>
class Oracle {
 public:
  explicit Oracle(const Case& given) : c(given), s(given.spec) {
    p1.assign(s.batch * s.heads * s.seq_q * s.seq_k, R(0));
    p2 = p1;
    const int64_t rows = c.rows_q() * s.heads;
    lse1.assign(rows, -std::numeric_limits<double>::infinity());
    lse2 = lse1;
    seen.assign(rows, 0);
    for_each_row([&](int64_t b, int64_t h, int64_t m) { compute_maps(b, h, m); });
  }

  /// May row m of head h see column n? Straight from the definition in params.h.
  bool visible(int64_t b, int64_t h, int64_t m, int64_t n) const {
    const Values& x = c.values;
    if (!x.key_starts.empty() && n < x.key_starts[b]) return false;
    if (!x.key_lengths.empty() && n >= x.key_lengths[b]) return false;
    const int64_t aligned = s.align_to_key_lengths && !x.key_lengths.empty()
                                ? static_cast<int64_t>(x.key_lengths[b])
                                : c.len_k(b);
    const int64_t place = m + aligned - c.len_q(b);
    if ((s.causal || s.window != kNoWindow) && n > place) return false;
    if (s.window != kNoWindow && n <= place - s.window) return false;
    return s.mask == MaskKind::kNone || std::isnan(bias(b, h, m, n)) || bias(b, h, m, n) > -kHuge;
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

  ForwardTruth forward() {
    ForwardTruth truth;
    const int64_t count = c.rows_q() * s.heads * s.value_dim;
    truth.out.resize(count);
    truth.o.resize(count);
    truth.o2.resize(count);
    truth.lse1 = lse1;
    truth.lse2 = lse2;
    for_each_row([&](int64_t b, int64_t h, int64_t m) {
      const Row row = compute_row(b, h, m);
      for (int64_t d = 0; d < s.value_dim; ++d) {
        const int64_t i = value_at(b, m, h) + d;
        truth.o.value[i] = static_cast<double>(row.o[d]);
        truth.o.magnitude[i] = row.o_magnitude[d];
        truth.o2.value[i] = static_cast<double>(row.o2[d]);
        truth.o2.magnitude[i] = row.o2_magnitude[d];
        if (seen[c.row_q(b, m) * s.heads + h] == 0) continue;  // out stays 0
        const double gain = std::abs(s.out_scale * weight(d)) * static_cast<double>(row.rstd);
        truth.out.value[i] = static_cast<double>(R(s.out_scale) * weight(d) * row.o[d] * row.rstd);
        truth.out.magnitude[i] =
            gain * (row.o_magnitude[d] + std::abs(static_cast<double>(row.o[d])) * row.rstd_error);
      }
    });
    return truth;
  }

  BackwardTruth backward() {
    BackwardTruth truth;
    truth.dq1.resize(c.values.q1.size());
    truth.dq2 = truth.dq1;
    truth.dk1.resize(c.values.k1.size());
    truth.dk2 = truth.dk1;
    truth.dv.resize(c.values.v.size());
    truth.dlambda.resize(c.values.lambda.size());
    truth.dnorm_weight.resize(s.value_dim);
    truth.dmask.resize(c.values.mask.size());
    for_each_row([&](int64_t b, int64_t h, int64_t m) {
      if (seen[c.row_q(b, m) * s.heads + h] != 0) add_row_gradients(b, h, m, truth);
    });
    return truth;
  }

  const Case& c;
  const Spec& s;
  std::vector<R> p1, p2;           // [B, H, M, N]
  std::vector<double> lse1, lse2;  // [rows_q, H]
  std::vector<int64_t> seen;       // [rows_q, H]: how many columns
  double score_magnitude = 0.0;    // largest sum |q k| |scale| + |mask|

 private:
  static constexpr double kHuge = std::numeric_limits<double>::max();

  /// One row of O and of the norm.
  struct Row {
    std::vector<R> o, o2;
    std::vector<double> o_magnitude, o2_magnitude;
    R rstd = 1;
    double rstd_error = 0;  // what a relative error of O's terms does to rstd, relatively
  };

  double bias(int64_t b, int64_t h, int64_t m, int64_t n) const {
    return s.mask == MaskKind::kNone ? 0.0 : c.values.mask[c.mask_index(b, h, m, n)];
  }
  R weight(int64_t d) const {
    return c.values.norm_weight.empty() ? R(1) : c.values.norm_weight[d];
  }
  int64_t query_at(int64_t b, int64_t m, int64_t h) const {
    return (c.row_q(b, m) * s.heads + h) * s.head_dim;
  }
  int64_t key_at(int64_t b, int64_t n, int64_t h) const {
    return (c.row_k(b, n) * s.kv_heads + c.kv_head(h)) * s.head_dim;
  }
  int64_t value_at(int64_t b, int64_t m, int64_t h) const {
    return (c.row_q(b, m) * s.heads + h) * s.value_dim;
  }
  const double* v_at(int64_t b, int64_t n, int64_t h) const {
    return &c.values.v[(c.row_k(b, n) * s.kv_heads + c.kv_head(h)) * s.value_dim];
  }

  /// Four partial sums, as in naive.h: one would be a chain of additions, each waiting for the
  /// last.
  R score(const double* q, const double* k, double scale, double mask) {
    R sums[4] = {0, 0, 0, 0};
    double sizes[4] = {0, 0, 0, 0};
    int64_t d = 0;
    for (; d + 4 <= s.head_dim; d += 4) {
      for (int64_t i = 0; i < 4; ++i) {
        sums[i] += R(q[d + i]) * k[d + i];
        sizes[i] += std::abs(q[d + i] * k[d + i]);
      }
    }
    for (; d < s.head_dim; ++d) {
      sums[0] += R(q[d]) * k[d];
      sizes[0] += std::abs(q[d] * k[d]);
    }
    const double size = (sizes[0] + sizes[1]) + (sizes[2] + sizes[3]);
    score_magnitude = std::max(score_magnitude, size * std::abs(scale) + std::abs(mask));
    return R(scale) * ((sums[0] + sums[1]) + (sums[2] + sums[3])) + mask;
  }

  void compute_maps(int64_t b, int64_t h, int64_t m) {
    const Values& x = c.values;
    std::vector<int64_t> columns;
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      if (visible(b, h, m, n)) columns.push_back(n);
    }
    const int64_t row = c.row_q(b, m) * s.heads + h, q = query_at(b, m, h);
    seen[row] = static_cast<int64_t>(columns.size());
    if (columns.empty()) return;
    const auto softmax = [&](const std::vector<double>& q_values,
                             const std::vector<double>& k_values, double scale, std::vector<R>& p) {
      R top = -std::numeric_limits<R>::infinity(), sum = 0;
      for (const int64_t n : columns) {
        const R value = score(&q_values[q], &k_values[key_at(b, n, h)], scale, bias(b, h, m, n));
        p[entry(b, h, m, n)] = value;
        top = std::max(top, value);
      }
      for (const int64_t n : columns) {
        R& value = p[entry(b, h, m, n)];
        value = std::exp(value - top);
        sum += value;
      }
      for (const int64_t n : columns) p[entry(b, h, m, n)] /= sum;
      return static_cast<double>(top + std::log(sum));
    };
    lse1[row] = softmax(x.q1, x.k1, s.scale, p1);
    lse2[row] = softmax(x.q2, x.k2, s.scale2, p2);
  }

  Row compute_row(int64_t b, int64_t h, int64_t m) const {
    Row row;
    row.o.assign(s.value_dim, R(0));
    row.o2 = row.o;
    row.o_magnitude.assign(s.value_dim, 0.0);
    row.o2_magnitude = row.o_magnitude;
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      if (!visible(b, h, m, n)) continue;
      const R a = difference(b, h, m, n), second = p2[entry(b, h, m, n)];
      const double second_size = static_cast<double>(second);
      const double size = static_cast<double>(p1[entry(b, h, m, n)]) +
                          std::abs(static_cast<double>(lambda(b, m, h))) * second_size;
      const double* v = v_at(b, n, h);
      for (int64_t d = 0; d < s.value_dim; ++d) {
        row.o[d] += a * v[d];
        row.o2[d] += second * v[d];
        row.o_magnitude[d] += size * std::abs(v[d]);
        row.o2_magnitude[d] += second_size * std::abs(v[d]);
      }
    }
    if (!s.norm) return row;
    R squares = 0;
    double error = 0;
    for (int64_t d = 0; d < s.value_dim; ++d) {
      squares += row.o[d] * row.o[d];
      error += std::abs(static_cast<double>(row.o[d])) * row.o_magnitude[d];
    }
    row.rstd = 1 / std::sqrt(squares / R(s.value_dim) + R(s.norm_eps));
    row.rstd_error = error * static_cast<double>(row.rstd * row.rstd) / double(s.value_dim);
    return row;
  }

  /// dO of one row and its magnitude; adds the row's part of dnorm_weight.
  void epilogue_backward(const Row& row, const double* dout, std::vector<R>& d_o,
                         std::vector<double>& size, Measured& dweight) const {
    const double r = static_cast<double>(row.rstd), width = static_cast<double>(s.value_dim);
    R inner = 0;
    double inner_size = 0;
    for (int64_t d = 0; d < s.value_dim; ++d) {
      const R g = R(s.out_scale) * weight(d) * dout[d];
      const double g_size = std::abs(static_cast<double>(g));
      inner += g * row.o[d];
      inner_size += g_size * row.o_magnitude[d];
      d_o[d] = g * row.rstd;
      size[d] = g_size * r * (1 + row.rstd_error);
      if (!s.norm) continue;
      const double scaled_dout = s.out_scale * dout[d];
      dweight.value[d] += static_cast<double>(R(scaled_dout) * row.o[d] * row.rstd);
      dweight.magnitude[d] +=
          std::abs(scaled_dout) * r *
          (row.o_magnitude[d] + std::abs(static_cast<double>(row.o[d])) * row.rstd_error);
    }
    if (!s.norm) return;
    for (int64_t d = 0; d < s.value_dim; ++d) {
      d_o[d] -= row.o[d] * row.rstd * row.rstd * row.rstd * inner / R(s.value_dim);
      const double o_size = std::abs(static_cast<double>(row.o[d]));
      size[d] +=
          r * r * r * inner_size / width * (o_size * (1 + 3 * row.rstd_error) + row.o_magnitude[d]);
    }
  }

  void add_row_gradients(int64_t b, int64_t h, int64_t m, BackwardTruth& truth) const {
    const Row row = compute_row(b, h, m);
    std::vector<R> d_o(s.value_dim);
    std::vector<double> d_o_size(s.value_dim);
    epilogue_backward(row, &c.values.dout[value_at(b, m, h)], d_o, d_o_size, truth.dnorm_weight);

    const int64_t keys = c.len_k(b), at_lambda = c.lambda_index(b, m, h);
    const R lam = lambda(b, m, h);
    const double lam_size = std::abs(static_cast<double>(lam));
    std::vector<R> da(keys, R(0));
    std::vector<double> da_size(keys, 0.0);
    R mean1 = 0, mean2 = 0;  // sum_n p dA
    double mean1_size = 0, mean2_size = 0;
    for (int64_t n = 0; n < keys; ++n) {
      if (!visible(b, h, m, n)) continue;
      const double* v = v_at(b, n, h);
      const int64_t dv = v - c.values.v.data();
      const R a = difference(b, h, m, n), first = p1[entry(b, h, m, n)],
              second = p2[entry(b, h, m, n)];
      const double a_size = static_cast<double>(first) + lam_size * static_cast<double>(second);
      for (int64_t d = 0; d < s.value_dim; ++d) {
        da[n] += d_o[d] * v[d];
        da_size[n] += d_o_size[d] * std::abs(v[d]);
        truth.dv.value[dv + d] += static_cast<double>(a * d_o[d]);
        truth.dv.magnitude[dv + d] += a_size * d_o_size[d];
      }
      mean1 += first * da[n];
      mean2 += second * da[n];
      mean1_size += static_cast<double>(first) * da_size[n];
      mean2_size += static_cast<double>(second) * da_size[n];
    }
    truth.dlambda.value[at_lambda] -= static_cast<double>(mean2);
    truth.dlambda.magnitude[at_lambda] += mean2_size;
    for (int64_t n = 0; n < keys; ++n) {
      if (!visible(b, h, m, n)) continue;
      const R first = p1[entry(b, h, m, n)], second = p2[entry(b, h, m, n)];
      const R ds1 = first * (da[n] - mean1), ds2 = -lam * second * (da[n] - mean2);
      const double ds1_size = static_cast<double>(first) * (da_size[n] + mean1_size);
      const double ds2_size = lam_size * static_cast<double>(second) * (da_size[n] + mean2_size);
      const int64_t q = query_at(b, m, h), k = key_at(b, n, h);
      add_input(ds1 * R(s.scale), ds1_size * std::abs(s.scale), c.values.k1, k, truth.dq1, q);
      add_input(ds2 * R(s.scale2), ds2_size * std::abs(s.scale2), c.values.k2, k, truth.dq2, q);
      add_input(ds1 * R(s.scale), ds1_size * std::abs(s.scale), c.values.q1, q, truth.dk1, k);
      add_input(ds2 * R(s.scale2), ds2_size * std::abs(s.scale2), c.values.q2, q, truth.dk2, k);
      if (s.mask == MaskKind::kNone) continue;
      const int64_t at_mask = c.mask_index(b, h, m, n);
      truth.dmask.value[at_mask] += static_cast<double>(ds1 + ds2);
      truth.dmask.magnitude[at_mask] += ds1_size + ds2_size;
    }
  }

  /// gradient[to ...] += ds * other[from ...]
  void add_input(R ds, double size, const std::vector<double>& other, int64_t from,
                 Measured& gradient, int64_t to) const {
    for (int64_t d = 0; d < s.head_dim; ++d) {
      gradient.value[to + d] += static_cast<double>(ds * other[from + d]);
      gradient.magnitude[to + d] += size * std::abs(other[from + d]);
    }
  }
};

}  // namespace diffattn::testing
