// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy and its gradient, row by row (formula in loss.h):
//
//   most = max z,  e = exp(z - most),  lse = most + log(sum e)
//   z = factor ((1 + 2 c lse) e / sum e - smoothing / V - (1 - smoothing) [label])
//
// All passes over a row of logits run while it is in cache, so memory is read and written once.
// Lanes are float32, totals double. The compiler vectorises the loops as in layers.cpp.

#include "kernels/loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kTaskBytes = 64 << 10;  // logits of a task, at least one row

/// Returns the maximum, or NaN if there is one.
DIFFATTN_EACH_ISA float maximum(const float* z, int64_t count) {
  float lanes[kLanes];
  int32_t unordered[kLanes] = {};
  std::fill(lanes, lanes + kLanes, z[0]);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      lanes[j] = z[i + j] > lanes[j] ? z[i + j] : lanes[j];
      unordered[j] |= z[i + j] != z[i + j] ? 1 : 0;
    }
  }
  float most = lanes[0];
  bool nan = false;
  for (int j = 0; j < kLanes; ++j) {
    most = lanes[j] > most ? lanes[j] : most;
    nan = nan || unordered[j] != 0;
  }
  for (; i < count; ++i) {
    most = z[i] > most ? z[i] : most;
    nan = nan || z[i] != z[i];
  }
  return nan ? NAN : most;
}

DIFFATTN_EACH_ISA double total(const float* z, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += z[i + j];
  }
  double sum = 0.0;
  for (const float lane : lanes) sum += lane;
  for (; i < count; ++i) sum += z[i];
  return sum;
}

/// z = exp(z - most)
DIFFATTN_EACH_ISA void exponentials(float* z, float most, int64_t count) {
  for (int64_t i = 0; i < count; ++i) z[i] = fast_exp(z[i] - most);
}

/// z = z scale - offset
DIFFATTN_EACH_ISA void scaled(float* z, float scale, float offset, int64_t count) {
  for (int64_t i = 0; i < count; ++i) z[i] = z[i] * scale - offset;
}

double run_row(const CrossEntropy& p, float* z, int64_t label) {
  if (label == p.ignored) {
    std::fill(z, z + p.classes, 0.0f);
    return 0.0;
  }
  const auto classes = static_cast<double>(p.classes);
  const double even = p.smoothing / classes, own = 1.0 - p.smoothing;
  const float most = maximum(z, p.classes);
  if (!std::isfinite(most)) {  // NaN, inf, or all -inf: the formula gives NaN
    std::fill(z, z + p.classes, NAN);
    return NAN;
  }
  double loss = -own * z[label];
  if (p.smoothing != 0.0f) loss -= even * total(z, p.classes);
  exponentials(z, most, p.classes);
  const double sum = total(z, p.classes), lse = most + std::log(sum);
  loss += lse + p.z_loss * lse * lse;
  const double steep = (1.0 + 2.0 * p.z_loss * lse) * p.factor;
  scaled(z, static_cast<float>(steep / sum), static_cast<float>(even * p.factor), p.classes);
  z[label] -= static_cast<float>(own * p.factor);
  return loss;
}

}  // namespace

void cross_entropy(const CrossEntropy& p) {
  const int64_t row_bytes = std::max<int64_t>(1, p.classes) * int64_t{sizeof(float)};
  const int64_t block = std::max<int64_t>(1, kTaskBytes / row_bytes);
  const int64_t tasks = (p.rows + block - 1) / block;
  parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
    const int64_t end = std::min(p.rows, (task + 1) * block);
    for (int64_t row = task * block; row < end; ++row) {
      p.loss[row] = run_row(p, p.logits + row * p.classes, p.labels[row]);
    }
  });
}

}  // namespace diffattn::cpu
