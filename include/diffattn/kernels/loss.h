// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cpu {

/// Cross-entropy of rows of logits z with lse = logsumexp(z), smoothing e, z-loss c and V classes:
///   loss = lse - (1 - e) z[label] - (e / V) sum(z) + c lse^2
/// In place, logits become factor * d loss / d z. Float32, host memory; results do not depend on
/// the number of threads.
struct CrossEntropy {
  float* logits = nullptr;          // [rows, classes]
  const int64_t* labels = nullptr;  // [rows]: in [0, classes), or `ignored`
  double* loss = nullptr;           // [rows]; 0, as the gradient, for ignored ones
  int64_t rows = 0, classes = 0, ignored = 0;
  float smoothing = 0.0f, z_loss = 0.0f, factor = 1.0f;
};
void cross_entropy(const CrossEntropy& params);

}  // namespace diffattn::cpu
