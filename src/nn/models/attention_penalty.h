// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Two penalties in [0, 1] for a loss. A is the map, j runs over the columns that row i sees:
///   sparsity = mean_i sum_j |A_ij| / (1 + |lambda|)         small if map 2 cancels much of map 1
///   focus    = 1 - mean_i sum_j A_ij^2 / (sum_j |A_ij|)^2   small if rows attend to few tokens
/// The means run over heads, over all calls in the traces, and over the rows that see a column and
/// are not padding.
struct AttentionPenalty {
  torch::Tensor sparsity, focus;  // scalars, float32
};

/// Computes the penalties from `attention_stats`: memory is linear in the sequence, and everything
/// in the traces gets gradients. `row_lengths` holds for each trace the number [B] of rows that are
/// not padding, or nullopt. Without it, a call with as many rows as columns counts as
/// self-attention, and its `key_starts` and `key_lengths` tell which rows are padding.
///
/// If other batches belong to the same loss, `shares` holds for each trace the share of all text
/// rows that this one has, and the penalties of all batches add up.
AttentionPenalty attention_penalty(
    const std::vector<AttentionTrace>& traces,
    const std::vector<std::optional<torch::Tensor>>& row_lengths = {},
    const std::vector<double>& shares = {});

}  // namespace diffattn::nn
