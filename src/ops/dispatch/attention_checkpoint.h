// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/ops.h"

/// Attention under activation checkpointing. The forward pass runs without gradients and saves a
/// checkpoint. The backward pass restores the attention from it, with a graph.
namespace diffattn {

/// The tensors that one attention call saves. Members that were not saved are undefined.
struct AttentionCheckpoint {
  torch::Tensor out, lse1, lse2, o, o2;
};

struct CheckpointedAttention {
  torch::Tensor out;
  AttentionCheckpoint checkpoint;
};

/// Computes `attention` without gradients and saves the tensors that `keep` asks for.
CheckpointedAttention attention_with_checkpoint(const torch::Tensor& q1, const torch::Tensor& q2,
                                                const torch::Tensor& k1, const torch::Tensor& k2,
                                                const torch::Tensor& v, const torch::Tensor& lambda,
                                                const AttentionOptions& options,
                                                KeepAttention keep);

/// Returns `attention` with gradients and computes only what the checkpoint lacks. The arguments
/// must have the values that gave the checkpoint.
torch::Tensor attention_from_checkpoint(const torch::Tensor& q1, const torch::Tensor& q2,
                                        const torch::Tensor& k1, const torch::Tensor& k2,
                                        const torch::Tensor& v, const torch::Tensor& lambda,
                                        const AttentionOptions& options,
                                        const AttentionCheckpoint& checkpoint);

namespace ops {

struct AttentionArguments;
enum class SavedOutputs : uint8_t;

/// Returns the arguments as the operators get them: under autocast, q, k and v in its type.
AttentionArguments after_autocast(AttentionArguments arguments);

/// Returns the outputs of the maps that the backward of these tensors reads.
SavedOutputs outputs_of_backward(const AttentionArguments& arguments);

/// Returns `attention` with gradients from a checkpoint that has at least lse1, lse2 and o2.
torch::Tensor restored_attention(const AttentionArguments& arguments,
                                 const AttentionCheckpoint& checkpoint);

}  // namespace ops
}  // namespace diffattn
