// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/ops.h"

/// Attention that is computed twice, as in a layer under activation checkpointing: the backward
/// pass runs it again, and what the first run kept saves work there.
namespace diffattn {

/// What the first run keeps. H Dv elements make one output.
enum class KeepAttention {
  /// Nothing: the second run computes everything again.
  kNothing,
  /// Two sums a row and map 2's output, where a kernel can use them (sm_90, 16-bit types, 64 or 128
  /// channels, values up to 128, no mask tensor): then 2/3 (Dv = 2 D) or 3/4 (Dv = D) of the work
  /// is done again. Elsewhere nothing.
  kSums,
  /// All that the backward pass reads: nothing is computed again, and the gradients have the bits
  /// of a single run.
  kResults,
};

/// Undefined where it was not kept.
struct KeptAttention {
  torch::Tensor out, lse1, lse2, o, o2;
};

struct FirstAttention {
  torch::Tensor out;
  KeptAttention kept;
};

/// `attention` without gradients, and what `attention_again` may use.
FirstAttention attention_first(const torch::Tensor& q1, const torch::Tensor& q2,
                               const torch::Tensor& k1, const torch::Tensor& k2,
                               const torch::Tensor& v, const torch::Tensor& lambda,
                               const AttentionOptions& options, KeepAttention keep);

/// `attention` with gradients, of arguments with the same values as those that gave `kept`.
torch::Tensor attention_again(const torch::Tensor& q1, const torch::Tensor& q2,
                              const torch::Tensor& k1, const torch::Tensor& k2,
                              const torch::Tensor& v, const torch::Tensor& lambda,
                              const AttentionOptions& options, const KeptAttention& kept);

}  // namespace diffattn
