// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

/// Options of `linear_cross_entropy`.
struct CrossEntropyOptions {
  /// Rows with this label add nothing to the loss and get no gradient.
  TORCH_ARG(int64_t, ignore_index) = -100;
  /// Part of the target that is spread evenly over the vocabulary, in [0, 1).
  TORCH_ARG(double, label_smoothing) = 0.0;
  /// Adds z_loss * logsumexp(logits)^2 per row: keeps the logits from drifting.
  TORCH_ARG(double, z_loss) = 0.0;
  /// Bytes of float32 logits that may exist at a time (with their softmax beside them, except for
  /// float32 on the CPU); 0: `default_chunk_bytes`.
  TORCH_ARG(int64_t, chunk_bytes) = 0;
};

/// 16 MiB on the CPU, where a chunk should not push everything else out of the caches; 512 MiB on a
/// GPU, where small products are slow.
int64_t default_chunk_bytes(torch::Device device);

struct TokenLoss {
  torch::Tensor mean;   // scalar, differentiable; 0 when every label is ignored
  torch::Tensor count;  // scalar int64: labels that were not ignored
};

/// Cross-entropy of logits = hidden weight^T without the logits: rows go through in chunks, and
/// their gradients are formed while a chunk's logits are at hand.
///
/// hidden [..., E], weight [V, E], labels [...] (int64 in [0, V), or ignore_index). Logits, softmax
/// and sums are at least float32; inside autocast the products run in its type. Memory: one chunk
/// of logits, and with gradients one [V, E] and one hidden in float32.
TokenLoss linear_cross_entropy(const torch::Tensor& hidden, const torch::Tensor& weight,
                               const torch::Tensor& labels,
                               const CrossEntropyOptions& options = {});

/// How many labels (other than ignore_index) are the likeliest token of their row, in chunks too.
int64_t count_correct(const torch::Tensor& hidden, const torch::Tensor& weight,
                      const torch::Tensor& labels, const CrossEntropyOptions& options = {});

}  // namespace diffattn::nn
