// SPDX-License-Identifier: Apache-2.0
//
// Statistics of one row of A = p1 - lambda p2, and what each entry of the row gets of their
// gradients. Definitions and steps as in kernels/reference/stats.cpp.
#pragma once

#include <climits>
#include <cmath>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/simt/tile_maps.cuh"

namespace diffattn::cuda {

inline constexpr float kFocusThreshold = 0.5f;
inline constexpr float kCoverageThreshold = 0.1f;

/// One rounding, the same in every pass, so that signs and maxima agree.
__device__ inline float difference(float p1, float p2, float lambda) {
  return fmaf(-lambda, p2, p1);
}

/// What map 2 may take away: lambda p2, nothing when lambda is negative.
__device__ inline float taken(float p2, float lambda) { return fmaxf(lambda * p2, 0.0f); }

/// One thread's part of a row's statistics, until `meet`.
struct RowSums {
  int visible = 0, sparse = 0, focus = 0, coverage = 0;
  float magnitude = 0.0f, square = 0.0f, negative = 0.0f, cancelled = 0.0f, overlap = 0.0f;
  float plogp = 0.0f;     // sum |A| log |A|
  float top = -INFINITY;  // max A, and the first column that has it
  int top_at = INT_MAX;
  float sink = 0.0f;  // A at the first column
  int first = INT_MAX;

  /// Columns of one thread come in ascending order.
  __device__ void add(int n, float p1, float p2, float lambda, float sparse_threshold) {
    const float a = difference(p1, p2, lambda), size = fabsf(a);
    ++visible;
    sparse += size < sparse_threshold;
    focus += size > kFocusThreshold;
    coverage += a > kCoverageThreshold;
    magnitude += size;
    square += a * a;
    negative += fmaxf(-a, 0.0f);
    cancelled += fminf(p1, taken(p2, lambda));
    overlap += fminf(p1, p2);
    if (size > 0.0f) plogp += size * logf(size);
    if (top_at == INT_MAX || a > top) top = a, top_at = n;
    if (first == INT_MAX) first = n, sink = a;
  }

  /// Adds up the parts of the 16 threads of a row; every thread gets the same bits.
  __device__ void meet() {
    visible = count(visible);
    sparse = count(sparse);
    focus = count(focus);
    coverage = count(coverage);
    magnitude = simt::row_sum(magnitude);
    square = simt::row_sum(square);
    negative = simt::row_sum(negative);
    cancelled = simt::row_sum(cancelled);
    overlap = simt::row_sum(overlap);
    plogp = simt::row_sum(plogp);
    for (int offset = 8; offset > 0; offset /= 2) {
      const float other_top = __shfl_xor_sync(0xffffffffu, top, offset);
      const int other_top_at = __shfl_xor_sync(0xffffffffu, top_at, offset);
      const bool ahead = other_top > top || (other_top == top && other_top_at < top_at);
      if (ahead) top = other_top, top_at = other_top_at;
      const float other_sink = __shfl_xor_sync(0xffffffffu, sink, offset);
      const int other_first = __shfl_xor_sync(0xffffffffu, first, offset);
      if (other_first < first) first = other_first, sink = other_sink;
    }
  }

  __device__ static int count(int x) {
    for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }

  /// -sum a log a with a = |A| / S is log S - sum |A| log |A| / S
  __device__ float entropy() const {
    return magnitude > 0.0f ? logf(magnitude) - plogp / magnitude : 0.0f;
  }
};

/// What the gradient of one row needs of the whole row, kept for the pass over keys.
struct RowGradient {
  simt::RowSoftmax p1, p2;
  float lambda;
  int first, top_at;   // the columns that the sink mass and the maximum were taken from
  float log_base;      // log S - H; 0 when S is 0
  float inverse_sum;   // 1 / S; 0 when S is 0
  float mean1, mean2;  // sum p dp: the softmax gradients' row sums
  // dstats of this row
  float dmagnitude, dsquare, dnegative, dtop, dentropy, dsink, dcancelled, doverlap;
};

struct EntryGradient {
  float dp1, dp2, dlambda;
};

/// Gradients of p1, p2 and lambda by entry n of a row.
__device__ inline EntryGradient entry_gradient(const RowGradient& row, int n, float p1, float p2) {
  const float a = difference(p1, p2, row.lambda);
  float da = 0.0f;  // sign(0) = 0
  if (a != 0.0f) {
    // d/d|A| of log S - sum |A| log |A| / S is (log S - H - log |A|) / S
    const float slope = row.dentropy == 0.0f
                            ? 0.0f
                            : row.dentropy * (row.log_base - logf(fabsf(a))) * row.inverse_sum;
    da = copysignf(1.0f, a) * (row.dmagnitude + slope) + 2.0f * a * row.dsquare;
    if (a < 0.0f) da -= row.dnegative;
  }
  if (n == row.first) da += row.dsink;
  if (n == row.top_at) da += row.dtop;
  EntryGradient gradient{da, -row.lambda * da, -da * p2};
  // A minimum passes its gradient to the smaller side, to p1 when they are equal.
  if (p1 <= taken(p2, row.lambda)) {
    gradient.dp1 += row.dcancelled;
  } else if (row.lambda > 0.0f) {
    gradient.dp2 += row.dcancelled * row.lambda;
    gradient.dlambda += row.dcancelled * p2;
  }
  (p1 <= p2 ? gradient.dp1 : gradient.dp2) += row.doverlap;
  return gradient;
}

/// Gradients of the two scores of entry n.
struct ScoreGradient {
  float ds1, ds2;
};
__device__ inline ScoreGradient score_gradient(const RowGradient& row, int n, float s1, float s2) {
  const float p1 = row.p1.probability(s1), p2 = row.p2.probability(s2);
  const EntryGradient gradient = entry_gradient(row, n, p1, p2);
  return {p1 * (gradient.dp1 - row.mean1), p2 * (gradient.dp2 - row.mean2)};
}

}  // namespace diffattn::cuda
