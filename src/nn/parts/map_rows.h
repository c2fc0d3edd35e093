// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Each packed sequence as a batch of one; tensors that are not packed as they are.
std::vector<HeadTensors> sequences(const HeadTensors& heads);

/// Rows that stand at a padded column, [B, M] bool: true = a real token. Undefined without padding.
torch::Tensor real_rows(const HeadTensors& heads);

/// Rows [begin, begin + count) of A = softmax1 - lambda softmax2, [B, H, count, N] in float32
/// (float64), 0 where a row may not see; differentiable in everything but the mask.
torch::Tensor map_rows(const HeadTensors& heads, int64_t begin, int64_t count);

/// A block of rows of the map, and the values of every query head.
struct RowBlock {
  torch::Tensor map;  // [B, H, C, N]
  torch::Tensor v;    // [B, H, N, Dv]
  int64_t begin;      // the first row
};

enum class Join { kRows, kSum };  // results of blocks: [B, H, C, W] one after another | added up

/// `compute` of every block of rows of a map (not packed), `block_bytes` of one map at a time.
/// Nothing of size M N is kept for the backward pass, which computes each block again; `compute`
/// outlives this call.
torch::Tensor over_row_blocks(const HeadTensors& heads, Join join,
                              const std::function<torch::Tensor(const RowBlock&)>& compute,
                              int64_t block_bytes = int64_t{8} << 20);

}  // namespace diffattn::nn
