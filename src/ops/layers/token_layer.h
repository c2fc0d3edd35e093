// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/ops_layers.h"

/// Generation on the CPU: one new token of each of a few rows, without a graph and without torch's
/// operators between the kernels, whose overhead would otherwise be a third of the time.
namespace diffattn {

/// weight [out, in], bias [out] or undefined.
struct LinearMap {
  torch::Tensor weight = {}, bias = {};
};

/// An attention with one lambda and rows q1 | q2 and k1 | k2 of its projections side by side.
struct TokenAttention {
  LinearMap q = {}, k = {}, v = {}, out = {};
  int64_t heads = 0, kv_heads = 0, query_heads = 0, key_heads = 0, head_dim = 0, value_dim = 0;
  /// Sub-heads j and j + count / 2 belong together (and the halves of v likewise), not 2j, 2j + 1.
  bool halves = false;
  double lambda = 0.0, out_scale = 1.0;
  std::optional<double> norm_eps = {};
  torch::Tensor norm_weight = {};  // [value_dim] or undefined: ones
};

/// A Llama-like layer: h = x + attention(norm(x)); y = h + down(silu(gate(n)) up(n)), n = norm(h).
struct TokenLayer {
  torch::Tensor input_norm = {}, post_norm = {};  // [E]
  double norm_eps = 0.0;
  TokenAttention attention = {};
  LinearMap gate = {}, up = {}, down = {};
};

/// What is before the new token.
struct TokenPast {
  torch::Tensor cos = {}, sin = {};  // [1, width / 2] or a row for each; undefined: no rotation
  RotateOptions rotation = {};
  torch::Tensor keys = {}, values = {};  // [B, capacity, key_heads, D], [B, capacity, Hkv, Dv]
  int64_t length = 0;                    // rows that are filled; the new token becomes the next
  std::optional<torch::Tensor> key_starts = {};  // [B]
  std::optional<int64_t> window = {};
};

/// Whether `token_layer` computes this: float32 in host memory, x [B, 1, E] with few rows, no
/// gradients to record, and a fused backend for the attention.
bool takes_token(const torch::Tensor& x, const TokenLayer& layer);

/// x [B, 1, E] -> [B, 1, E]; writes the token's keys and values behind the past ones.
torch::Tensor token_layer(const torch::Tensor& x, const TokenLayer& layer, const TokenPast& past);

}  // namespace diffattn
