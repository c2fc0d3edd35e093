// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace diffattn::testing {

template <class R>
Oracle<R>::Oracle(const Case& given) : c(given), s(given.spec) {
  p1.assign(s.batch * s.heads * s.seq_q * s.seq_k, R(0));
  p2 = p1;
  const int64_t rows = c.rows_q() * s.heads;
  lse1.assign(rows, -std::numeric_limits<double>::infinity());
  lse2 = lse1;
  seen.assign(rows, 0);
  columns_.resize(s.batch * s.heads * s.seq_q);
  for_each_row([&](int64_t b, int64_t h, int64_t m) {
    std::vector<int64_t>& list = columns_[(b * s.heads + h) * s.seq_q + m];
    list.reserve(c.len_k(b));
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      if (visible(b, h, m, n)) list.push_back(n);
    }
    seen[query_row(b, m, h)] = static_cast<int64_t>(list.size());
  });
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      compute_map(b, h, /*second=*/false);
      compute_map(b, h, /*second=*/true);
    }
  }
}

template <class R>
bool Oracle<R>::visible(int64_t b, int64_t h, int64_t m, int64_t n) const {
  constexpr double kHuge = std::numeric_limits<double>::max();
  const Values& x = c.values;
  if (!x.key_starts.empty() && n < x.key_starts[b]) return false;
  if (!x.key_lengths.empty() && n >= x.key_lengths[b]) return false;
  const int64_t aligned = s.align_to_key_lengths && !x.key_lengths.empty()
                              ? static_cast<int64_t>(x.key_lengths[b])
                              : c.len_k(b);
  const int64_t place = m + aligned - c.len_q(b);
  if (s.causal && n > place) return false;
  if (s.window.right != kNoBound && n - place > s.window.right) return false;
  if (s.window.left != kNoBound && place - n > s.window.left) return false;
  return s.mask == MaskKind::kNone || std::isnan(bias(b, h, m, n)) || bias(b, h, m, n) > -kHuge;
}

template <class R>
void Oracle<R>::compute_map(int64_t b, int64_t h, bool second) {
  const Values& x = c.values;
  const double scale = second ? s.scale2 : s.scale;
  const Matrix<R> q = query_rows<R>(c, second ? x.q2 : x.q1, b, h, s.head_dim);
  const Matrix<double> q_size = magnitudes(q);
  const Matrix<R> k = transposed(key_rows<R>(c, second ? x.k2 : x.k1, b, h, s.head_dim));
  const std::vector<int64_t> all = numbers(s.head_dim);
  std::vector<R> scores;
  std::vector<double> sizes;
  for (int64_t m = 0; m < q.rows; ++m) {
    const std::vector<int64_t>& list = columns(b, h, m);
    if (list.empty()) continue;
    const int64_t first = list.front(), width = list.back() + 1 - first;
    scores.assign(width, R(0));
    sizes.assign(width, 0.0);
    add_rows(scores.data(), sizes.data(), q.row(m), q_size.row(m), k.row(0) + first, k.columns, all,
             width);

    R* const p = (second ? p2 : p1).data() + entry(b, h, m, 0);
    R top = -std::numeric_limits<R>::infinity(), sum = 0;
    for (const int64_t n : list) {
      const double mask = bias(b, h, m, n);
      p[n] = R(scale) * scores[n - first] + mask;
      top = std::max(top, p[n]);
      score_magnitude =
          std::max(score_magnitude, sizes[n - first] * std::abs(scale) + std::abs(mask));
    }
    for (const int64_t n : list) sum += p[n] = std::exp(p[n] - top);
    for (const int64_t n : list) p[n] /= sum;
    (second ? lse2 : lse1)[query_row(b, m, h)] = static_cast<double>(top + std::log(sum));
  }
}

template <class R>
void Oracle<R>::compute_row(int64_t b, int64_t h, int64_t m, const Matrix<R>& v, Row& row) const {
  const std::vector<int64_t>& list = columns(b, h, m);
  const R lam = lambda(b, m, h);
  const double lam_size = std::abs(static_cast<double>(lam));
  for (std::vector<R>* values : {&row.p1, &row.p2, &row.a}) values->resize(list.size());
  for (std::vector<double>* values : {&row.p2_size, &row.a_size}) values->resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    row.p1[i] = p1[entry(b, h, m, list[i])];
    row.p2[i] = p2[entry(b, h, m, list[i])];
    row.a[i] = row.p1[i] - lam * row.p2[i];
    row.p2_size[i] = static_cast<double>(row.p2[i]);
    row.a_size[i] = static_cast<double>(row.p1[i]) + lam_size * row.p2_size[i];
  }
  row.o.assign(s.value_dim, R(0));
  row.o2 = row.o;
  row.o_magnitude.assign(s.value_dim, 0.0);
  row.o2_magnitude = row.o_magnitude;
  add_rows(row.o.data(), row.o_magnitude.data(), row.a.data(), row.a_size.data(), v.row(0),
           s.value_dim, list, s.value_dim);
  add_rows(row.o2.data(), row.o2_magnitude.data(), row.p2.data(), row.p2_size.data(), v.row(0),
           s.value_dim, list, s.value_dim);
  if (!s.norm) return;
  R squares = 0;
  double error = 0;
  for (int64_t d = 0; d < s.value_dim; ++d) {
    squares += row.o[d] * row.o[d];
    error += std::abs(static_cast<double>(row.o[d])) * row.o_magnitude[d];
  }
  row.rstd = 1 / std::sqrt(squares / R(s.value_dim) + R(s.norm_eps));
  row.rstd_error = error * static_cast<double>(row.rstd * row.rstd) / double(s.value_dim);
}

template <class R>
ForwardTruth Oracle<R>::forward() const {
  ForwardTruth truth;
  const int64_t count = c.rows_q() * s.heads * s.value_dim;
  truth.out.resize(count);
  truth.o.resize(count);
  truth.o2.resize(count);
  truth.lse1 = lse1;
  truth.lse2 = lse2;
  Row row;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const Matrix<R> v = key_rows<R>(c, c.values.v, b, h, s.value_dim);
      for (int64_t m = 0; m < c.len_q(b); ++m) {
        if (columns(b, h, m).empty()) continue;  // the row stays 0
        compute_row(b, h, m, v, row);
        store_row(row, query_row(b, m, h) * s.value_dim, truth);
      }
    }
  }
  return truth;
}

template <class R>
void Oracle<R>::store_row(const Row& row, int64_t at, ForwardTruth& truth) const {
  for (int64_t d = 0; d < s.value_dim; ++d) {
    const double o = static_cast<double>(row.o[d]);
    truth.o.value[at + d] = o;
    truth.o.magnitude[at + d] = row.o_magnitude[d];
    truth.o2.value[at + d] = static_cast<double>(row.o2[d]);
    truth.o2.magnitude[at + d] = row.o2_magnitude[d];
    const double gain =
        std::abs(s.out_scale * static_cast<double>(weight(d))) * static_cast<double>(row.rstd);
    truth.out.value[at + d] = static_cast<double>(R(s.out_scale) * weight(d) * row.o[d] * row.rstd);
    truth.out.magnitude[at + d] = gain * (row.o_magnitude[d] + std::abs(o) * row.rstd_error);
  }
}

/// Computes dO of one row and its magnitude, and adds the row's part of dnorm_weight.
template <class R>
void Oracle<R>::epilogue_backward(const Row& row, const double* dout, R* d_o, double* size,
                                  Measured& dweight) const {
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

/// Gradients that several heads add to.
template <class R>
struct Oracle<R>::Sums {
  std::vector<R> dk1, dk2, dv;
};

/// Backward of one head: dA, dS and dq row by row, then dk and dv column by column.
template <class R>
struct Oracle<R>::HeadGradients {
  HeadGradients(const Oracle& given, int64_t batch_entry, int64_t head)
      : oracle(given),
        c(given.c),
        s(given.s),
        b(batch_entry),
        h(head),
        k1(key_rows<R>(c, c.values.k1, b, h, s.head_dim)),
        k2(key_rows<R>(c, c.values.k2, b, h, s.head_dim)),
        v(key_rows<R>(c, c.values.v, b, h, s.value_dim)),
        vt(transposed(v)),
        all_of_v(numbers(s.value_dim)),
        rows(c.len_k(b)) {}

  void run(BackwardTruth& truth, Sums& sums) {
    for (int64_t m = 0; m < c.len_q(b); ++m) {
      if (!oracle.columns(b, h, m).empty()) add_row(m, truth);
    }
    const Matrix<R> q1 = query_rows<R>(c, c.values.q1, b, h, s.head_dim);
    const Matrix<R> q2 = query_rows<R>(c, c.values.q2, b, h, s.head_dim);
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      const int64_t k = oracle.key_row(b, n, h) * s.head_dim;
      const int64_t at = oracle.key_row(b, n, h) * s.value_dim;
      add_rows(&sums.dk1[k], &truth.dk1.magnitude[k], ds1_t.row(n), ds1_size_t.row(n), q1.row(0),
               s.head_dim, rows[n], s.head_dim);
      add_rows(&sums.dk2[k], &truth.dk2.magnitude[k], ds2_t.row(n), ds2_size_t.row(n), q2.row(0),
               s.head_dim, rows[n], s.head_dim);
      add_rows(&sums.dv[at], a_t.row(n), d_o.row(0), s.value_dim, rows[n], s.value_dim);
      add_rows(&truth.dv.magnitude[at], a_size_t.row(n), d_o_size.row(0), s.value_dim, rows[n],
               s.value_dim);
    }
  }

  void add_row(int64_t m, BackwardTruth& truth) {
    oracle.compute_row(b, h, m, v, row);
    const int64_t at = oracle.query_row(b, m, h);
    oracle.epilogue_backward(row, &c.values.dout[at * s.value_dim], d_o.row(m), d_o_size.row(m),
                             truth.dnorm_weight);
    compute_ds(m, truth);
    add_mask_gradient(m, ds1, ds2, truth.dmask.value);
    add_mask_gradient(m, ds1_size, ds2_size, truth.dmask.magnitude);
    times(ds1, R(s.scale));
    times(ds2, R(s.scale2));
    times(ds1_size, std::abs(s.scale));
    times(ds2_size, std::abs(s.scale2));
    add_dq(m, ds1, ds1_size, k1, at * s.head_dim, truth.dq1);
    const int64_t noise = c.row_q(b, m) * c.noise_heads() + c.noise_head(h);
    add_dq(m, ds2, ds2_size, k2, noise * s.head_dim, truth.dq2);
    const std::vector<int64_t>& list = oracle.columns(b, h, m);
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t n = list[i];
      const size_t next = rows[n].size();
      rows[n].push_back(m);
      a_t.row(n)[next] = row.a[i];
      ds1_t.row(n)[next] = ds1[i];
      ds2_t.row(n)[next] = ds2[i];
      a_size_t.row(n)[next] = row.a_size[i];
      ds1_size_t.row(n)[next] = ds1_size[i];
      ds2_size_t.row(n)[next] = ds2_size[i];
    }
  }

  /// Computes dA, dlambda, and dS without the scale.
  void compute_ds(int64_t m, BackwardTruth& truth) {
    const std::vector<int64_t>& list = oracle.columns(b, h, m);
    const int64_t first = list.front(), width = list.back() + 1 - first;
    da.assign(width, R(0));
    da_size.assign(width, 0.0);
    add_rows(da.data(), da_size.data(), d_o.row(m), d_o_size.row(m), vt.row(0) + first, vt.columns,
             all_of_v, width);
    R mean1 = 0, mean2 = 0;  // sum_n p dA
    double mean1_size = 0, mean2_size = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t n = list[i] - first;
      mean1 += row.p1[i] * da[n];
      mean2 += row.p2[i] * da[n];
      mean1_size += static_cast<double>(row.p1[i]) * da_size[n];
      mean2_size += row.p2_size[i] * da_size[n];
    }
    const int64_t at_lambda = c.lambda_index(b, m, h);
    truth.dlambda.value[at_lambda] -= static_cast<double>(mean2);
    truth.dlambda.magnitude[at_lambda] += mean2_size;

    const R lam = oracle.lambda(b, m, h);
    const double lam_size = std::abs(static_cast<double>(lam));
    for (std::vector<R>* ds : {&ds1, &ds2}) ds->resize(list.size());
    for (std::vector<double>* size : {&ds1_size, &ds2_size}) size->resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t n = list[i] - first;
      ds1[i] = row.p1[i] * (da[n] - mean1);
      ds2[i] = -lam * row.p2[i] * (da[n] - mean2);
      ds1_size[i] = static_cast<double>(row.p1[i]) * (da_size[n] + mean1_size);
      ds2_size[i] = lam_size * row.p2_size[i] * (da_size[n] + mean2_size);
    }
  }

  template <class T>
  void add_mask_gradient(int64_t m, const std::vector<T>& first, const std::vector<T>& second,
                         std::vector<double>& dmask) const {
    if (s.mask == MaskKind::kNone) return;
    const std::vector<int64_t>& list = oracle.columns(b, h, m);
    for (size_t i = 0; i < list.size(); ++i) {
      dmask[c.mask_index(b, h, m, list[i])] += static_cast<double>(first[i] + second[i]);
    }
  }

  template <class T>
  static void times(std::vector<T>& list, T factor) {
    for (T& x : list) x *= factor;
  }

  void add_dq(int64_t m, const std::vector<R>& ds, const std::vector<double>& ds_size,
              const Matrix<R>& k, int64_t at, Measured& gradient) {
    dq.assign(s.head_dim, R(0));
    add_rows(dq.data(), &gradient.magnitude[at], ds.data(), ds_size.data(), k.row(0), s.head_dim,
             oracle.columns(b, h, m), s.head_dim);
    for (int64_t d = 0; d < s.head_dim; ++d) {  // dq2: the heads of a noise head add up
      gradient.value[at + d] += static_cast<double>(dq[d]);
    }
  }

  const Oracle& oracle;
  const Case& c;
  const Spec& s;
  const int64_t b, h;
  const Matrix<R> k1, k2;  // [N, D]
  const Matrix<R> v, vt;   // [N, Dv], [Dv, N]
  const std::vector<int64_t> all_of_v;

  Row row{};                                // the current one
  std::vector<R> da{}, ds1{}, ds2{}, dq{};  // and its gradients
  std::vector<double> da_size{}, ds1_size{}, ds2_size{};
  Matrix<R> d_o{c.len_q(b), s.value_dim};
  Matrix<double> d_o_size{c.len_q(b), s.value_dim};

  // Transposes [N, M]: for each column, the rows that see it and their entries there.
  std::vector<std::vector<int64_t>> rows;
  Matrix<R> a_t{c.len_k(b), c.len_q(b)}, ds1_t{a_t}, ds2_t{a_t};
  Matrix<double> a_size_t{c.len_k(b), c.len_q(b)}, ds1_size_t{a_size_t}, ds2_size_t{a_size_t};
};

template <class R>
BackwardTruth Oracle<R>::backward() const {
  BackwardTruth truth;
  truth.dq1.resize(c.values.q1.size());
  truth.dq2.resize(c.values.q2.size());
  truth.dk1.resize(c.values.k1.size());
  truth.dk2 = truth.dk1;
  truth.dv.resize(c.values.v.size());
  truth.dlambda.resize(c.values.lambda.size());
  truth.dnorm_weight.resize(s.value_dim);
  truth.dmask.resize(c.values.mask.size());
  Sums sums{std::vector<R>(c.values.k1.size()), std::vector<R>(c.values.k2.size()),
            std::vector<R>(c.values.v.size())};
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) HeadGradients(*this, b, h).run(truth, sums);
  }
  truth.dk1.value.assign(sums.dk1.begin(), sums.dk1.end());
  truth.dk2.value.assign(sums.dk2.begin(), sums.dk2.end());
  truth.dv.value.assign(sums.dv.begin(), sums.dv.end());
  return truth;
}

template class Oracle<double>;
template class Oracle<long double>;

}  // namespace diffattn::testing
