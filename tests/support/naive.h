// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "case.h"
#include "oracle.h"

/// The yardstick: Differential attention as the paper's code computes it in a low-precision type T
/// (float, BFloat16, Float16), every tensor that code keeps being rounded to T:
///
///   s = round(scale q k), round(s + mask);  p = softmax(s) in fp32, then round(p)
///   a = round(p1 - round(lambda p2));       o = round(a v), products summed in fp32
///   norm in fp32, round; times weight, round; times out_scale, round
///
/// and backward what autograd would do with those tensors, each gradient rounded likewise. lambda
/// and the norm weight are not rounded to T (the paper's code does), which makes it better than the
/// paper's code and the bound on ours tighter. A row that sees nothing gives 0, not NaN.
namespace diffattn::testing {

struct NaiveForward {
  std::vector<double> out, o, o2;
};

struct NaiveBackward {
  std::vector<double> dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask;
};

template <class T>
class Naive {
 public:
  explicit Naive(const Oracle<double>& given) : oracle(given), c(given.c), s(given.s) {
    q1.assign(c.values.q1.begin(), c.values.q1.end());
    q2.assign(c.values.q2.begin(), c.values.q2.end());
    k1.assign(c.values.k1.begin(), c.values.k1.end());
    k2.assign(c.values.k2.begin(), c.values.k2.end());
    v.assign(c.values.v.begin(), c.values.v.end());
  }

  NaiveForward forward() {
    NaiveForward result;
    result.out.assign(c.rows_q() * s.heads * s.value_dim, 0.0);
    result.o = result.o2 = result.out;
    oracle.for_each_row([&](int64_t b, int64_t h, int64_t m) {
      const Row row = compute_row(b, h, m);
      const int64_t at = (c.row_q(b, m) * s.heads + h) * s.value_dim;
      for (int64_t d = 0; d < s.value_dim; ++d) {
        result.o[at + d] = row.o[d];
        result.o2[at + d] = row.o2[d];
        if (row.columns.empty()) continue;
        float y = row.normed[d];
        if (!c.values.norm_weight.empty()) y = round(y * weight(d));
        if (s.out_scale != 1.0) y = round(y * static_cast<float>(s.out_scale));
        result.out[at + d] = y;
      }
    });
    return result;
  }

  NaiveBackward backward() {
    NaiveBackward result;
    result.dq1.assign(q1.size(), 0.0);
    result.dq2 = result.dq1;
    result.dk1.assign(k1.size(), 0.0);
    result.dk2 = result.dk1;
    result.dv.assign(v.size(), 0.0);
    result.dlambda.assign(c.values.lambda.size(), 0.0);
    result.dnorm_weight.assign(s.value_dim, 0.0);
    result.dmask.assign(c.values.mask.size(), 0.0);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) run_head_backward(b, h, result);
    }
    // Sums over the heads of a group, and over what lambda, weight and mask share, end rounded.
    for (std::vector<double>* gradient : {&result.dk1, &result.dk2, &result.dv}) {
      for (double& x : *gradient) x = round(static_cast<float>(x));
    }
    return result;
  }

 private:
  struct Row {
    std::vector<int64_t> columns;
    std::vector<float> p1, p2, p1_fp32, p2_fp32, a;  // over `columns`
    std::vector<float> o, o2, normed;                // [Dv], rounded
    float rstd = 1.0f;
  };

  static float round(float value) { return static_cast<float>(T(value)); }

  /// Four partial sums: the compiler may not reorder a float sum itself, and this is not slower
  /// than it has to be.
  static float dot(const float* x, const float* y, int64_t width) {
    float sum[4] = {0, 0, 0, 0};
    int64_t d = 0;
    for (; d + 4 <= width; d += 4) {
      for (int64_t i = 0; i < 4; ++i) sum[i] += x[d + i] * y[d + i];
    }
    for (; d < width; ++d) sum[0] += x[d] * y[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  float weight(int64_t d) const {
    return c.values.norm_weight.empty() ? 1.0f : static_cast<float>(c.values.norm_weight[d]);
  }
  float lambda(int64_t b, int64_t m, int64_t h) const {
    return static_cast<float>(oracle.lambda(b, m, h));
  }
  int64_t key_at(int64_t b, int64_t n, int64_t h) const {
    return c.row_k(b, n) * s.kv_heads + c.kv_head(h);
  }

  void softmax(Row& row, int64_t b, int64_t h, int64_t m, bool second) const {
    const std::vector<float>& q = second ? q2 : q1;
    const std::vector<float>& k = second ? k2 : k1;
    const float scale = static_cast<float>(second ? s.scale2 : s.scale);
    std::vector<float>& p = second ? row.p2_fp32 : row.p1_fp32;
    float top = -std::numeric_limits<float>::infinity(), sum = 0.0f;
    for (const int64_t n : row.columns) {
      float score = round(scale * dot(&q[(c.row_q(b, m) * s.heads + h) * s.head_dim],
                                      &k[key_at(b, n, h) * s.head_dim], s.head_dim));
      if (s.mask == MaskKind::kAdditive) {
        score = round(score + static_cast<float>(c.values.mask[c.mask_index(b, h, m, n)]));
      }
      p.push_back(score);
      top = std::max(top, score);
    }
    for (float& x : p) sum += x = std::exp(x - top);
    std::vector<float>& stored = second ? row.p2 : row.p1;
    for (float& x : p) stored.push_back(round(x /= sum));
  }

  Row compute_row(int64_t b, int64_t h, int64_t m) const {
    Row row;
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      if (oracle.visible(b, h, m, n)) row.columns.push_back(n);
    }
    softmax(row, b, h, m, false);
    softmax(row, b, h, m, true);
    row.o.assign(s.value_dim, 0.0f);
    row.o2 = row.o;
    for (size_t i = 0; i < row.columns.size(); ++i) {
      row.a.push_back(round(row.p1[i] - round(lambda(b, m, h) * row.p2[i])));
      const float* value = &v[key_at(b, row.columns[i], h) * s.value_dim];
      for (int64_t d = 0; d < s.value_dim; ++d) {
        row.o[d] += row.a[i] * value[d];
        row.o2[d] += row.p2[i] * value[d];
      }
    }
    for (float& x : row.o) x = round(x);
    for (float& x : row.o2) x = round(x);
    row.normed = row.o;
    if (!s.norm) return row;
    row.rstd = 1.0f / std::sqrt(dot(row.o.data(), row.o.data(), s.value_dim) /
                                    static_cast<float>(s.value_dim) +
                                static_cast<float>(s.norm_eps));
    for (float& x : row.normed) x = round(x * row.rstd);
    return row;
  }

  /// dout to dO through the epilogue's stored tensors.
  std::vector<float> epilogue_backward(const Row& row, const double* dout,
                                       std::vector<double>& dweight) const {
    std::vector<float> g(s.value_dim);
    for (int64_t d = 0; d < s.value_dim; ++d) {
      g[d] = static_cast<float>(dout[d]);
      if (s.out_scale != 1.0) g[d] = round(g[d] * static_cast<float>(s.out_scale));
      if (!s.norm) continue;
      dweight[d] += round(g[d] * row.normed[d]);
      if (!c.values.norm_weight.empty()) g[d] = round(g[d] * weight(d));
    }
    if (!s.norm) return g;
    const float inner = dot(g.data(), row.o.data(), s.value_dim) / static_cast<float>(s.value_dim);
    for (int64_t d = 0; d < s.value_dim; ++d) {
      g[d] = round(row.rstd * (g[d] - row.o[d] * row.rstd * row.rstd * inner));
    }
    return g;
  }

  /// Adds this head's part, rounded, to the gradients its group shares.
  void run_head_backward(int64_t b, int64_t h, NaiveBackward& result) const {
    const int64_t keys = c.len_k(b);
    std::vector<float> dk1(keys * s.head_dim), dk2(dk1), dv(keys * s.value_dim);
    for (int64_t m = 0; m < c.len_q(b); ++m) {
      const Row row = compute_row(b, h, m);
      if (row.columns.empty()) continue;
      const int64_t at = c.row_q(b, m) * s.heads + h;
      const std::vector<float> d_o =
          epilogue_backward(row, &c.values.dout[at * s.value_dim], result.dnorm_weight);
      const size_t count = row.columns.size();
      std::vector<float> dp1(count), dp2(count);
      for (size_t i = 0; i < count; ++i) {
        const int64_t n = row.columns[i];
        dp1[i] = round(dot(d_o.data(), &v[key_at(b, n, h) * s.value_dim], s.value_dim));
        dp2[i] = round(-lambda(b, m, h) * dp1[i]);
        result.dlambda[c.lambda_index(b, m, h)] += round(-dp1[i] * row.p2[i]);
        for (int64_t d = 0; d < s.value_dim; ++d) dv[n * s.value_dim + d] += row.a[i] * d_o[d];
      }
      const std::vector<float> ds1 = softmax_backward(row.p1_fp32, dp1);
      const std::vector<float> ds2 = softmax_backward(row.p2_fp32, dp2);
      add_inputs(row, b, h, at, ds1, static_cast<float>(s.scale), q1, k1, dk1, result.dq1);
      add_inputs(row, b, h, at, ds2, static_cast<float>(s.scale2), q2, k2, dk2, result.dq2);
      if (s.mask == MaskKind::kNone) continue;
      for (size_t i = 0; i < count; ++i) {
        result.dmask[c.mask_index(b, h, m, row.columns[i])] += ds1[i] + ds2[i];
      }
    }
    const auto add_rounded = [&](const std::vector<float>& from, int64_t width,
                                 std::vector<double>& to) {
      for (int64_t n = 0; n < keys; ++n) {
        for (int64_t d = 0; d < width; ++d) {
          to[key_at(b, n, h) * width + d] += round(from[n * width + d]);
        }
      }
    };
    add_rounded(dk1, s.head_dim, result.dk1);
    add_rounded(dk2, s.head_dim, result.dk2);
    add_rounded(dv, s.value_dim, result.dv);
  }

  static std::vector<float> softmax_backward(const std::vector<float>& p,
                                             const std::vector<float>& dp) {
    std::vector<float> ds(p.size());
    const float mean = dot(p.data(), dp.data(), static_cast<int64_t>(p.size()));
    for (size_t i = 0; i < p.size(); ++i) ds[i] = round(p[i] * (dp[i] - mean));
    return ds;
  }

  void add_inputs(const Row& row, int64_t b, int64_t h, int64_t at, const std::vector<float>& ds,
                  float scale, const std::vector<float>& q, const std::vector<float>& k,
                  std::vector<float>& dk, std::vector<double>& dq) const {
    std::vector<float> sum(s.head_dim);
    for (size_t i = 0; i < row.columns.size(); ++i) {
      const int64_t n = row.columns[i];
      for (int64_t d = 0; d < s.head_dim; ++d) {
        sum[d] += ds[i] * k[key_at(b, n, h) * s.head_dim + d];
        dk[n * s.head_dim + d] += scale * ds[i] * q[at * s.head_dim + d];
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) dq[at * s.head_dim + d] = round(scale * sum[d]);
  }

  const Oracle<double>& oracle;
  const Case& c;
  const Spec& s;
  std::vector<float> q1, q2, k1, k2, v;
};

}  // namespace diffattn::testing
