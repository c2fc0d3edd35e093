// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

/// Options of `linear_cross_entropy`.
struct CrossEntropyOptions {
  /// Rows with this label add nothing to the loss and get no gradient.
  TORCH_ARG(int64_t, ignore_index) = -100;
  /// Share of the target distribution that is uniform over the vocabulary, in [0, 1).
  TORCH_ARG(double, label_smoothing) = 0.0;
  /// Adds z_loss * logsumexp(logits)^2 per row, which keeps the logits from drifting.
  TORCH_ARG(double, z_loss) = 0.0;
  /// Bytes of logits in memory at a time; 0: `default_chunk_bytes`. Their softmax needs the same
  /// amount in types and on devices for which we have no kernel.
  TORCH_ARG(int64_t, chunk_bytes) = 0;
};

/// Returns 16 MiB on the CPU, so that a chunk stays in the caches, and 1 GiB on a GPU, where
/// small products are slow.
int64_t default_chunk_bytes(torch::Device device);

struct TokenLoss {
  torch::Tensor mean;   // scalar, differentiable; 0 if every label is ignored
  torch::Tensor count;  // scalar int64: number of labels that are not ignored
};

/// Computes the cross-entropy of logits = hidden weight^T without all logits in memory. It works in
/// chunks of rows and computes the gradients of a chunk while its logits exist.
///
/// hidden [..., E], weight [V, E], labels [...] (int64 in [0, V), or ignore_index). Logits, softmax
/// and sums are at least float32; inside autocast the products run in its type. Memory: one chunk
/// of logits; with gradients also one weight and one hidden in float32.
TokenLoss linear_cross_entropy(const torch::Tensor& hidden, const torch::Tensor& weight,
                               const torch::Tensor& labels,
                               const CrossEntropyOptions& options = {});

/// Counts the labels (other than ignore_index) that are the likeliest token of their row, also in
/// chunks.
int64_t count_correct(const torch::Tensor& hidden, const torch::Tensor& weight,
                      const torch::Tensor& labels, const CrossEntropyOptions& options = {});

}  // namespace diffattn::nn
