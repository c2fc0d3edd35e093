// SPDX-License-Identifier: Apache-2.0
#include "tests/support/naive.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace diffattn::testing {
namespace {

/// Returns the dot product, with four partial sums because the compiler may not reorder the sum.
float dot(const std::vector<float>& x, const std::vector<float>& y) {
  float sum[4] = {0, 0, 0, 0};
  const size_t width = x.size();
  size_t d = 0;
  for (; d + 4 <= width; d += 4) {
    for (size_t i = 0; i < 4; ++i) sum[i] += x[d + i] * y[d + i];
  }
  for (; d < width; ++d) sum[0] += x[d] * y[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

}  // namespace

template <class T>
Naive<T>::Head::Head(const Case& c, int64_t batch_entry, int64_t head)
    : b(batch_entry),
      h(head),
      q1(query_rows<float>(c, c.values.q1, b, h, c.spec.head_dim)),
      q2(query_rows<float>(c, c.values.q2, b, h, c.spec.head_dim)),
      k1t(transposed(key_rows<float>(c, c.values.k1, b, h, c.spec.head_dim))),
      k2t(transposed(key_rows<float>(c, c.values.k2, b, h, c.spec.head_dim))),
      v(key_rows<float>(c, c.values.v, b, h, c.spec.value_dim)),
      dims(numbers(c.spec.head_dim)) {}

template <class T>
void Naive<T>::softmax(const Head& head, int64_t m, bool second, Row& row) const {
  const std::vector<int64_t>& list = oracle.columns(head.b, head.h, m);
  const Matrix<float>& k = second ? head.k2t : head.k1t;
  const float scale = static_cast<float>(second ? s.scale2 : s.scale);
  const int64_t first = list.front(), width = list.back() + 1 - first;
  row.scores.assign(width, 0.0f);
  add_rows(row.scores.data(), (second ? head.q2 : head.q1).row(m), k.values.data() + first,
           k.columns, head.dims, width);
  std::vector<float>& p = second ? row.p2_fp32 : row.p1_fp32;
  p.resize(list.size());
  float top = -std::numeric_limits<float>::infinity(), sum = 0.0f;
  for (size_t i = 0; i < list.size(); ++i) {
    float score = round(scale * row.scores[list[i] - first]);
    if (s.mask == MaskKind::kAdditive) {
      const double mask = c.values.mask[c.mask_index(head.b, head.h, m, list[i])];
      score = round(score + static_cast<float>(mask));
    }
    p[i] = score;
    top = std::max(top, score);
  }
  for (float& x : p) sum += x = std::exp(x - top);
  std::vector<float>& stored = second ? row.p2 : row.p1;
  stored.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) stored[i] = round(p[i] /= sum);
}

template <class T>
void Naive<T>::compute_row(const Head& head, int64_t m, Row& row) const {
  softmax(head, m, false, row);
  softmax(head, m, true, row);
  const float lam = lambda(head.b, m, head.h);
  row.a.resize(row.p1.size());
  for (size_t i = 0; i < row.a.size(); ++i) row.a[i] = round(row.p1[i] - round(lam * row.p2[i]));
  row.o.assign(s.value_dim, 0.0f);
  row.o2 = row.o;
  const std::vector<int64_t>& list = oracle.columns(head.b, head.h, m);
  const float* const v = head.v.values.data();
  add_rows(row.o.data(), row.a.data(), v, s.value_dim, list, s.value_dim);
  add_rows(row.o2.data(), row.p2.data(), v, s.value_dim, list, s.value_dim);
  for (float& x : row.o) x = round(x);
  for (float& x : row.o2) x = round(x);
  row.normed = row.o;
  if (!s.norm) return;
  row.rstd = 1.0f / std::sqrt(dot(row.o, row.o) / static_cast<float>(s.value_dim) +
                              static_cast<float>(s.norm_eps));
  for (float& x : row.normed) x = round(x * row.rstd);
}

template <class T>
NaiveForward Naive<T>::forward() const {
  NaiveForward result;
  result.out.assign(c.rows_q() * s.heads * s.value_dim, 0.0);
  result.o = result.o2 = result.out;
  const auto store = [&](const Row& row, int64_t at) {
    for (int64_t d = 0; d < s.value_dim; ++d) {
      result.o[at + d] = row.o[d];
      result.o2[at + d] = row.o2[d];
      float y = row.normed[d];
      if (!c.values.norm_weight.empty()) y = round(y * weight(d));
      if (s.out_scale != 1.0) y = round(y * static_cast<float>(s.out_scale));
      result.out[at + d] = y;
    }
  };
  Row row;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const Head head(c, b, h);
      for (int64_t m = 0; m < c.len_q(b); ++m) {
        if (oracle.columns(b, h, m).empty()) continue;
        compute_row(head, m, row);
        store(row, (c.row_q(b, m) * s.heads + h) * s.value_dim);
      }
    }
  }
  return result;
}

/// Computes dO from dout with the rounded tensors of the epilogue.
template <class T>
std::vector<float> Naive<T>::epilogue_backward(const Row& row, const double* dout,
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
  const float inner = dot(g, row.o) / static_cast<float>(s.value_dim);
  for (int64_t d = 0; d < s.value_dim; ++d) {
    g[d] = round(row.rstd * (g[d] - row.o[d] * row.rstd * row.rstd * inner));
  }
  return g;
}

/// Backward of one head. Rounds its parts of dk and dv, which the group shares.
template <class T>
struct Naive<T>::HeadGradients {
  HeadGradients(const Naive& given, int64_t b, int64_t h)
      : naive(given),
        c(given.c),
        s(given.s),
        head(c, b, h),
        k1(key_rows<float>(c, c.values.k1, b, h, s.head_dim)),
        k2(key_rows<float>(c, c.values.k2, b, h, s.head_dim)),
        vt(transposed(head.v)),
        all_of_v(numbers(s.value_dim)),
        d_o(c.len_q(b), s.value_dim),
        rows(c.len_k(b)),
        a_t(c.len_k(b), c.len_q(b)),
        ds1_t(a_t),
        ds2_t(a_t) {}

  void run(NaiveBackward& result) {
    for (int64_t m = 0; m < d_o.rows; ++m) {
      if (!naive.oracle.columns(head.b, head.h, m).empty()) add_row(m, result);
    }
    for (int64_t n = 0; n < vt.columns; ++n) {
      const int64_t at = c.row_k(head.b, n) * s.kv_heads + c.kv_head(head.h);
      add_rounded(ds1_t.row(n), head.q1, rows[n], &result.dk1[at * s.head_dim]);
      add_rounded(ds2_t.row(n), head.q2, rows[n], &result.dk2[at * s.head_dim]);
      add_rounded(a_t.row(n), d_o, rows[n], &result.dv[at * s.value_dim]);
    }
  }

  void add_rounded(const float* a, const Matrix<float>& x, const std::vector<int64_t>& list,
                   double* to) {
    sum.assign(x.columns, 0.0f);
    add_rows(sum.data(), a, x.row(0), x.columns, list, x.columns);
    for (int64_t d = 0; d < x.columns; ++d) to[d] += round(sum[d]);
  }

  void add_row(int64_t m, NaiveBackward& result) {
    naive.compute_row(head, m, row);
    const std::vector<int64_t>& list = naive.oracle.columns(head.b, head.h, m);
    const int64_t at = c.row_q(head.b, m) * s.heads + head.h;
    const std::vector<float> g =
        naive.epilogue_backward(row, &c.values.dout[at * s.value_dim], result.dnorm_weight);
    std::copy(g.begin(), g.end(), d_o.row(m));

    const int64_t first = list.front(), width = list.back() + 1 - first;
    da.assign(width, 0.0f);
    add_rows(da.data(), g.data(), vt.row(0) + first, vt.columns, all_of_v, width);
    for (std::vector<float>* values : {&dp1, &dp2, &ds1, &ds2}) values->resize(list.size());
    const float lam = naive.lambda(head.b, m, head.h);
    double& dlambda = result.dlambda[c.lambda_index(head.b, m, head.h)];
    for (size_t i = 0; i < list.size(); ++i) {
      dp1[i] = round(da[list[i] - first]);
      dp2[i] = round(-lam * dp1[i]);
      dlambda += round(-dp1[i] * row.p2[i]);
    }
    softmax_backward(row.p1_fp32, dp1, ds1);
    softmax_backward(row.p2_fp32, dp2, ds2);
    if (s.mask != MaskKind::kNone) {
      for (size_t i = 0; i < list.size(); ++i) {
        result.dmask[c.mask_index(head.b, head.h, m, list[i])] += ds1[i] + ds2[i];
      }
    }
    store_dq(ds1, k1, static_cast<float>(s.scale), list, &result.dq1[at * s.head_dim]);
    const int64_t noise = c.row_q(head.b, m) * c.noise_heads() + c.noise_head(head.h);
    store_dq(ds2, k2, static_cast<float>(s.scale2), list, &result.dq2[noise * s.head_dim]);
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t n = list[i];
      const size_t next = rows[n].size();
      rows[n].push_back(m);
      a_t.row(n)[next] = row.a[i];
      ds1_t.row(n)[next] = static_cast<float>(s.scale) * ds1[i];
      ds2_t.row(n)[next] = static_cast<float>(s.scale2) * ds2[i];
    }
  }

  static void softmax_backward(const std::vector<float>& p, const std::vector<float>& dp,
                               std::vector<float>& ds) {
    const float mean = dot(p, dp);
    for (size_t i = 0; i < p.size(); ++i) ds[i] = round(p[i] * (dp[i] - mean));
  }

  void store_dq(const std::vector<float>& ds, const Matrix<float>& k, float scale,
                const std::vector<int64_t>& list, double* dq) {
    sum.assign(k.columns, 0.0f);
    add_rows(sum.data(), ds.data(), k.row(0), k.columns, list, k.columns);
    for (int64_t d = 0; d < k.columns; ++d) dq[d] += round(scale * sum[d]);
  }

  const Naive& naive;
  const Case& c;
  const Spec& s;
  const Head head;
  const Matrix<float> k1, k2;  // [N, D]
  const Matrix<float> vt;      // [Dv, N]
  const std::vector<int64_t> all_of_v;
  Row row{};                                                   // the current one
  std::vector<float> da{}, dp1{}, dp2{}, ds1{}, ds2{}, sum{};  // and its gradients
  Matrix<float> d_o;                                           // [M, Dv]
  // Transposes [N, M]: for each column, the rows that see it and their entries there. ds includes
  // the scale.
  std::vector<std::vector<int64_t>> rows;
  Matrix<float> a_t, ds1_t, ds2_t;
};

template <class T>
NaiveBackward Naive<T>::backward() const {
  NaiveBackward result;
  result.dq1.assign(c.values.q1.size(), 0.0);
  result.dq2.assign(c.values.q2.size(), 0.0);
  result.dk1.assign(c.values.k1.size(), 0.0);
  result.dk2 = result.dk1;
  result.dv.assign(c.values.v.size(), 0.0);
  result.dlambda.assign(c.values.lambda.size(), 0.0);
  result.dnorm_weight.assign(s.value_dim, 0.0);
  result.dmask.assign(c.values.mask.size(), 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) HeadGradients(*this, b, h).run(result);
  }
  // Sums over the heads of a group are rounded; dlambda, dnorm_weight and dmask are not.
  for (std::vector<double>* gradient : {&result.dq2, &result.dk1, &result.dk2, &result.dv}) {
    for (double& x : *gradient) x = round(static_cast<float>(x));
  }
  return result;
}

template class Naive<float>;
template class Naive<BFloat16>;
template class Naive<Float16>;

}  // namespace diffattn::testing
