// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Splits packed tensors into sequences, each a batch of one. Returns other tensors unchanged.
std::vector<HeadTensors> sequences(const HeadTensors& heads);

/// Returns which rows are real tokens and not padding, [B, M] bool; undefined without padding.
torch::Tensor real_rows(const HeadTensors& heads);

/// Computes rows [begin, begin + count) of A = softmax1 - lambda softmax2, [B, H, count, N] in
/// float32 (float64); 0 at hidden columns. Differentiable with respect to everything but the mask.
torch::Tensor map_rows(const HeadTensors& heads, int64_t begin, int64_t count);

/// A block of rows of the map, and the values of every query head.
struct RowBlock {
  torch::Tensor map;  // [B, H, C, N]
  torch::Tensor v;    // [B, H, N, Dv]
  int64_t begin;      // the first row
};

/// The combination of block results: concatenate [B, H, C, W] along rows, or add.
enum class Join { kRows, kSum };

/// Applies `compute` to blocks of rows of a map (not packed), each `block_bytes` of one map. The
/// backward pass computes each block a second time, so nothing of size M N is saved. The graph
/// keeps a copy of `compute`.
torch::Tensor over_row_blocks(const HeadTensors& heads, Join join,
                              const std::function<torch::Tensor(const RowBlock&)>& compute,
                              int64_t block_bytes = int64_t{8} << 20);

}  // namespace diffattn::nn
