// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Two numbers in [0, 1] that a loss may add, with A the map, i its rows, j what row i may see:
///   sparsity = mean_i sum_j |A_ij| / (1 + |lambda|)   small when map 2 cancels much of map 1
///   focus    = 1 - mean_i sum_j A_ij^2 / (sum_j |A_ij|)^2   small when rows look at few tokens
/// Means are over rows that see something and are no padding (`text_rows`), over heads and over all
/// calls in the traces.
struct AttentionPenalty {
  torch::Tensor sparsity, focus;  // scalars, float32
};

/// Through `attention_stats`: memory linear in the sequence, gradients for everything in the
/// traces. `row_lengths`: one for each trace, as `text_rows` has them, or none at all.
AttentionPenalty attention_penalty(
    const std::vector<AttentionTrace>& traces,
    const std::vector<std::optional<torch::Tensor>>& row_lengths = {});

}  // namespace diffattn::nn
