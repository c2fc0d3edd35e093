// SPDX-License-Identifier: Apache-2.0
//
// Statistics of one row of A = p1 - lambda p2, and their gradients with respect to each entry of
// the row. Follows kernels/reference/stats.cpp step by step.
#pragma once

#include <climits>
#include <cmath>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/simt/tile_maps.cuh"

namespace diffattn::cuda {

inline constexpr float kFocusThreshold = 0.5f;
inline constexpr float kCoverageThreshold = 0.1f;

/// Returns A with one rounding. Every pass uses it, so that signs and maxima agree.
__device__ inline float difference(float p1, float p2, float lambda) {
  return fmaf(-lambda, p2, p1);
}

/// Returns what map 2 can cancel: lambda p2, or 0 if lambda is negative.
__device__ inline float cancellable(float p2, float lambda) { return fmaxf(lambda * p2, 0.0f); }

/// Statistics of a row. Until `reduce_row` they cover one thread's columns only.
struct RowSums {
  int visible = 0, sparse = 0, focus = 0, coverage = 0;
  float magnitude = 0.0f, square = 0.0f, negative = 0.0f, cancelled = 0.0f, overlap = 0.0f;
  float plogp = 0.0f;     // sum |A| log |A|
  float top = -INFINITY;  // max A
  int top_at = INT_MAX;   // first column with A = top
  float sink = 0.0f;      // A at the first visible column
  int first = INT_MAX;    // first visible column

  /// Adds column n. A thread adds its columns in ascending order.
  __device__ void add(int n, float p1, float p2, float lambda, float sparse_threshold) {
    const float a = difference(p1, p2, lambda), size = fabsf(a);
    ++visible;
    sparse += size < sparse_threshold;
    focus += size > kFocusThreshold;
    coverage += a > kCoverageThreshold;
    magnitude += size;
    square += a * a;
    negative += fmaxf(-a, 0.0f);
    cancelled += fminf(p1, cancellable(p2, lambda));
    overlap += fminf(p1, p2);
    if (size > 0.0f) plogp += size * logf(size);
    if (top_at == INT_MAX || a > top) top = a, top_at = n;
    if (first == INT_MAX) first = n, sink = a;
  }

  /// Combines the 16 threads of a row in a fixed order; every thread gets the same bits.
  __device__ void reduce_row() {
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

  /// Returns -sum a log a with a = |A| / S, which is log S - sum |A| log |A| / S.
  __device__ float entropy() const {
    return magnitude > 0.0f ? logf(magnitude) - plogp / magnitude : 0.0f;
  }
};

/// Row-wide quantities that the gradient of an entry needs. S = sum |A|, H = entropy.
struct RowGradient {
  simt::RowSoftmax p1, p2;
  float lambda;
  int first, top_at;   // columns of the sink mass and of the maximum
  float log_base;      // log S - H; 0 if S is 0
  float inverse_sum;   // 1 / S; 0 if S is 0
  float mean1, mean2;  // sum p dp: row sums of the softmax gradients
  // Gradients of the row's statistics (dstats).
  float dmagnitude, dsquare, dnegative, dtop, dentropy, dsink, dcancelled, doverlap;
};

struct EntryGradient {
  float dp1, dp2, dlambda;
};

/// Returns the gradients of p1 and p2 at column n, and the column's term of dlambda.
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
  // The gradient of min(x, y) goes to the smaller argument, and to p1 if they are equal.
  if (p1 <= cancellable(p2, row.lambda)) {
    gradient.dp1 += row.dcancelled;
  } else if (row.lambda > 0.0f) {
    gradient.dp2 += row.dcancelled * row.lambda;
    gradient.dlambda += row.dcancelled * p2;
  }
  (p1 <= p2 ? gradient.dp1 : gradient.dp2) += row.doverlap;
  return gradient;
}

/// Gradients of both maps' scores at one column.
struct ScoreGradient {
  float ds1, ds2;
};
__device__ inline ScoreGradient score_gradient(const RowGradient& row, int n, float s1, float s2) {
  const float p1 = row.p1.probability(s1), p2 = row.p2.probability(s2);
  const EntryGradient gradient = entry_gradient(row, n, p1, p2);
  return {p1 * (gradient.dp1 - row.mean1), p2 * (gradient.dp2 - row.mean2)};
}

}  // namespace diffattn::cuda
