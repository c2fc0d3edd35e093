// SPDX-License-Identifier: Apache-2.0
//
// Gradients of q, k, lambda and the mask, from the gradients dp1 and dp2 of both maps. For each
// row m, with p, dp, ds [N]:
//
//   (8)  ds = p (dp - sum_n p[n] dp[n])                      for both maps
//   (9)  dq = scale ds k,   dk += scale ds^T q,   dmask += ds1 + ds2
//
// dq2 of a noise head is the sum over the heads that share it.
//
// All sums are in double; each gradient is rounded once, when it is stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "diffattn/kernels/params.h"
#include "kernels/reference/maps.h"

namespace diffattn::reference {

/// Accumulates the gradient of a broadcast input, in which several (b, m, h) share one element.
/// Sums stay in double until all rows are added, so that each element is rounded once.
class BroadcastSum {
 public:
  /// `span`: the largest offset plus 1.
  explicit BroadcastSum(int64_t span) : sum_(span, 0.0) {}

  void add(int64_t offset, double value) { sum_[offset] += value; }

  template <class T>
  void store(void* data) const {
    for (size_t i = 0; i < sum_.size(); ++i) static_cast<T*>(data)[i] = narrow<T>(sum_[i]);
  }

 private:
  std::vector<double> sum_;
};

/// Steps (8) and (9). For each kv head, call begin_kv_head, add_row for all of its rows, and
/// end_kv_head. Call finish once at the end.
template <class T>
class InputGradients {
 public:
  InputGradients(const Problem& problem, const ProblemGradients& gradients)
      : problem_(problem),
        gradients_(gradients),
        dlambda_(gradients.dlambda ? span(gradients.dlambda) : 0),
        dmask_(gradients.dmask != nullptr ? span(gradients.dmask_strides) : 0) {}

  void begin_kv_head(int64_t b) {
    const Sequence seq = sequence_of(problem_, b);
    dk1_.assign(seq.seq_k * problem_.head_dim, 0.0);
    dk2_.assign(seq.seq_k * problem_.head_dim, 0.0);
    dq2_.assign(seq.seq_q * problem_.head_dim, 0.0);
  }

  /// dp1, dp2 [N]: gradients of row m of p1 and p2, read at visible columns only. dlambda: gradient
  /// of the row's lambda.
  void add_row(const HeadMaps<T>& maps, int64_t b, int64_t h, int64_t m,
               const std::vector<double>& dp1, const std::vector<double>& dp2, double dlambda) {
    const int64_t dim = problem_.head_dim;
    const double mean1 = weighted_sum(maps, maps.p1, dp1);
    const double mean2 = weighted_sum(maps, maps.p2, dp2);
    std::vector<double> dq1(dim, 0.0);
    double* const dq2 = &dq2_[m * dim];
    const int64_t group = problem_.noise_group();
    if (h % group == 0) std::fill_n(dq2, dim, 0.0);
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
      if (!maps.visible[n]) continue;
      const double ds1 = maps.p1[n] * (dp1[n] - mean1);  // (8)
      const double ds2 = maps.p2[n] * (dp2[n] - mean2);
      add_scaled(dq1.data(), problem_.scale * ds1, &maps.k1[n * dim], dim);  // (9)
      add_scaled(dq2, problem_.scale2 * ds2, &maps.k2[n * dim], dim);
      add_scaled(&dk1_[n * dim], problem_.scale * ds1, &maps.q1[m * dim], dim);
      add_scaled(&dk2_[n * dim], problem_.scale2 * ds2, &maps.q2[m * dim], dim);
      if (gradients_.dmask != nullptr) {
        const MaskStrides& stride = gradients_.dmask_strides;
        dmask_.add(b * stride.batch + h * stride.head + m * stride.row + n * stride.column,
                   ds1 + ds2);
      }
    }
    const int64_t row = maps.seq.q_begin + m;
    if (gradients_.dq1) store_row<T>(gradients_.dq1, b, row, h, dq1.data(), dim);
    if (gradients_.dq2 && (h + 1) % group == 0) {
      store_row<T>(gradients_.dq2, b, row, h / group, dq2, dim);
    }
    if (gradients_.dlambda) {
      const View<void>& view = gradients_.dlambda;
      dlambda_.add(b * view.batch_stride + row * view.seq_stride + h * view.head_stride, dlambda);
    }
  }

  void end_kv_head(int64_t b, int64_t g) {
    const Sequence seq = sequence_of(problem_, b);
    const int64_t dim = problem_.head_dim;
    for (int64_t n = 0; n < seq.seq_k; ++n) {
      const int64_t row = seq.k_begin + n;
      if (gradients_.dk1) store_row<T>(gradients_.dk1, b, row, g, &dk1_[n * dim], dim);
      if (gradients_.dk2) store_row<T>(gradients_.dk2, b, row, g, &dk2_[n * dim], dim);
    }
  }

  void finish() const {
    if (gradients_.dlambda) dlambda_.template store<Accumulator<T>>(gradients_.dlambda.data);
    if (gradients_.dmask != nullptr) dmask_.template store<Accumulator<T>>(gradients_.dmask);
  }

 private:
  static double weighted_sum(const HeadMaps<T>& maps, const std::vector<double>& p,
                             const std::vector<double>& dp) {
    double sum = 0.0;
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
      if (maps.visible[n]) sum += p[n] * dp[n];
    }
    return sum;
  }

  /// Returns the number of elements of a dense dlambda [B, M, H], or [total, H] if packed.
  int64_t span(const View<void>& view) const {
    const int64_t rows =
        problem_.cu_seqlens_q == nullptr ? problem_.seq_q : problem_.cu_seqlens_q[problem_.batch];
    return span_of({{problem_.batch, view.batch_stride},
                    {rows, view.seq_stride},
                    {problem_.heads, view.head_stride}});
  }

  int64_t span(const MaskStrides& stride) const {
    return span_of({{problem_.batch, stride.batch},
                    {problem_.heads, stride.head},
                    {problem_.seq_q, stride.row},
                    {problem_.seq_k, stride.column}});
  }

  static int64_t span_of(std::initializer_list<std::pair<int64_t, int64_t>> axes) {
    int64_t span = 1;
    for (const auto& [size, stride] : axes) {
      if (stride == 0) continue;  // broadcast: all indices share one element
      if (size == 0) return 0;
      span += (size - 1) * stride;
    }
    return span;
  }

  const Problem& problem_;
  const ProblemGradients& gradients_;
  BroadcastSum dlambda_, dmask_;
  std::vector<double> dk1_, dk2_;  // [N, D] of the current kv head
  std::vector<double> dq2_;        // [M, D] of the current noise head
};

}  // namespace diffattn::reference
