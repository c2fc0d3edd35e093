// SPDX-License-Identifier: Apache-2.0
//
// Both softmax maps of one (batch entry, head), one row at a time, in double:
//
//   (1)     s1[n] = scale q1[m].k1[n] + mask,   s2[n] = scale2 q2[m].k2[n] + mask  for visible n
//   (2) (3) p1 = softmax(s1), lse1;   p2 = softmax(s2), lse2
//
// Step numbers are those of docs/algorithm.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "diffattn/kernels/params.h"
#include "kernels/reference/rows.h"
#include "kernels/visible.h"

namespace diffattn::reference {

template <class T>
class HeadMaps {
 public:
  HeadMaps(const Problem& problem, int64_t b, int64_t h)
      : problem_(problem), b_(b), h_(h), seq(sequence_of(problem, b)) {
    const int64_t g = h / (problem.heads / problem.kv_heads);
    const int64_t dim = problem.head_dim;
    q1 = load_rows<T>(problem.q1, b, seq.q_begin, seq.seq_q, h, dim);
    q2 = load_rows<T>(problem.q2, b, seq.q_begin, seq.seq_q, h / problem.noise_group(), dim);
    k1 = load_rows<T>(problem.k1, b, seq.k_begin, seq.seq_k, g, dim);
    k2 = load_rows<T>(problem.k2, b, seq.k_begin, seq.seq_k, g, dim);
    visible.resize(seq.seq_k);
    p1.resize(seq.seq_k);
    p2.resize(seq.seq_k);
  }

  /// Computes row m into the members below. Entries outside [columns.begin, columns.end) are stale.
  void compute_row(int64_t m) {
    const int64_t dim = problem_.head_dim;
    columns = columns_of(problem_, seq, m);
    lambda = *problem_.lambda.as<const Accumulator<T>>().at(b_, seq.q_begin + m, h_);
    visible_count = 0;
    for (int64_t n = columns.begin; n < columns.end; ++n) {
      const MaskEntry entry = mask_entry(problem_.mask, b_, h_, m, n);
      visible[n] = entry.visible;
      visible_count += entry.visible;
      if (!entry.visible) continue;
      // (1) s1 = scale q1.k1 + mask,  s2 = scale2 q2.k2 + mask
      p1[n] = problem_.scale * dot(&q1[m * dim], &k1[n * dim], dim) + entry.bias;
      p2[n] = problem_.scale2 * dot(&q2[m * dim], &k2[n * dim], dim) + entry.bias;
    }
    lse1 = softmax(p1);  // (2)
    lse2 = softmax(p2);  // (3)
  }

  /// Returns A[m, n] of the row computed last.
  double difference(int64_t n) const { return p1[n] - lambda * p2[n]; }

 private:
  const Problem& problem_;
  const int64_t b_, h_;

 public:
  const Sequence seq;
  std::vector<double> q1, q2;  // [M, D]
  std::vector<double> k1, k2;  // [N, D]

  Columns columns;
  std::vector<char> visible;   // [N]
  std::vector<double> p1, p2;  // [N]; 0 where not visible
  int64_t visible_count = 0;
  double lambda = 0.0;
  double lse1 = -INFINITY, lse2 = -INFINITY;

 private:
  /// Turns scores into probabilities in place and returns log sum exp. Returns -inf for a row that
  /// sees no column; exp(-inf - -inf) is never formed.
  double softmax(std::vector<double>& p) const {
    double maximum = -INFINITY;
    for (int64_t n = columns.begin; n < columns.end; ++n) {
      if (visible[n] && p[n] > maximum) maximum = p[n];
    }
    double sum = 0.0;
    for (int64_t n = columns.begin; n < columns.end; ++n) {
      p[n] = visible[n] ? std::exp(p[n] - maximum) : 0.0;
      sum += p[n];
    }
    if (visible_count == 0) return -INFINITY;
    for (int64_t n = columns.begin; n < columns.end; ++n) p[n] /= sum;
    return maximum + std::log(sum);
  }
};

}  // namespace diffattn::reference
