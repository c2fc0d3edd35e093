// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

namespace diffattn::cpu {

/// Computes the cross-entropy of rows of logits z, with lse = logsumexp(z), label smoothing e,
/// z-loss c and V classes:
///   loss = lse - (1 - e) z[label] - (e / V) sum(z) + c lse^2
/// Overwrites the logits with factor * d loss / d z. Float32 in host memory. Results do not depend
/// on the number of threads.
struct CrossEntropy {
  float* logits = nullptr;          // [rows, classes]
  const int64_t* labels = nullptr;  // [rows]: in [0, classes), or `ignored`
  double* loss = nullptr;           // [rows]; ignored rows get loss 0 and gradient 0
  int64_t rows = 0, classes = 0, ignored = 0;
  float smoothing = 0.0f, z_loss = 0.0f, factor = 1.0f;
};
void cross_entropy(const CrossEntropy& params);

}  // namespace diffattn::cpu

namespace diffattn::cuda {

/// The same on a GPU, for logits of type `dtype` with float32 arithmetic. Enqueues the work on
/// `stream`, a cudaStream_t. The logits are 16-byte aligned and `classes` is a multiple of 8.
struct CrossEntropy {
  void* logits = nullptr;           // [rows, classes]
  const int64_t* labels = nullptr;  // [rows]; a label out of range makes the loss of its row NaN
  float* loss = nullptr;            // [rows]
  const float* factor = nullptr;    // [1]: multiplies the gradient; null: logits stay as they are
  int64_t rows = 0, classes = 0, ignored = 0;
  float smoothing = 0.0f, z_loss = 0.0f;
  Dtype dtype = Dtype::kFloat32;
};
void cross_entropy(const CrossEntropy& params, void* stream);

}  // namespace diffattn::cuda
