// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "kernels/token_step.h"

namespace diffattn::infer {

/// Widths of a model's intermediate results.
struct StepWidths {
  int64_t hidden = 0, inner = 0, vocabulary = 0;
  int64_t queries = 0;  // q1 and q2 of all heads
  int64_t outputs = 0;  // heads times value_dim
  int64_t heads = 0;
};

/// The state of a batch and the intermediate results of a step, in the device's memory at fixed
/// addresses, so that graphs can refer to them.
struct StepBuffers {
  StepBuffers(int64_t rows, int64_t table_pages, const StepWidths& widths,
              const torch::TensorOptions& options);

  /// Copies the state of the rows of smaller buffers.
  void take_state(const StepBuffers& from);

  /// Returns the kernels' view of the first `rows` rows.
  token::Batch batch(int64_t rows) const;
  token::Residual residual() const;
  token::Sampling sampling() const;

  int64_t rows, table_pages;
  StepWidths widths;
  // State of the rows, int32: see token::Batch and Sampling.
  torch::Tensor tokens, positions, lengths, steps;  // [rows]
  torch::Tensor table;                              // [rows, table_pages]
  torch::Tensor rules;                              // [rows, sizeof(SamplingRule)] bytes
  torch::Tensor counts;                             // [rows, vocabulary] int16
  torch::Tensor chosen;  // [rows, kRing, sizeof(Chosen)] bytes in pinned host memory
  // Intermediate results.
  torch::Tensor x, scaled, squares, q, lambda, heads, inner, logits;
};

}  // namespace diffattn::infer
