// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/ops.h"

/// Attention that is computed twice, as in a layer under activation checkpointing: the backward
/// pass runs it again, and what the first run kept saves work there.
namespace diffattn {

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
