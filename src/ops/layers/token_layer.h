// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/ops_layers.h"

/// Generation on the CPU: one new token for each of a few rows, without a graph. The kernels run
/// back to back: torch's operators between them would take a third of the time.
namespace diffattn {

/// weight [out, in], bias [out] or undefined.
struct LinearMap {
  torch::Tensor weight = {}, bias = {};
};

/// An attention with one lambda for all tokens and heads. The q projection gives q1 and q2
/// together, the k projection k1 and k2.
struct TokenAttention {
  LinearMap q = {}, k = {}, v = {}, out = {};
  int64_t heads = 0, kv_heads = 0, query_heads = 0, key_heads = 0, head_dim = 0, value_dim = 0;
  /// True: sub-heads j and j + count / 2 form a pair (and the halves of v likewise); false:
  /// sub-heads 2j and 2j + 1.
  bool halves = false;
  double lambda = 0.0, out_scale = 1.0;
  std::optional<double> norm_eps = {};
  torch::Tensor norm_weight = {};  // [value_dim]; undefined = ones
};

/// A Llama-like layer: h = x + attention(norm(x)); y = h + down(silu(gate(n)) up(n)), n = norm(h).
struct TokenLayer {
  torch::Tensor input_norm = {}, post_norm = {};  // [E]
  double norm_eps = 0.0;
  TokenAttention attention = {};
  LinearMap gate = {}, up = {}, down = {};
};

/// The state before the new token: position, KV cache and masks.
struct TokenPast {
  torch::Tensor cos = {}, sin = {};  // [1 or B, width / 2]; undefined: no rotation
  RotateOptions rotation = {};
  torch::Tensor keys = {}, values = {};  // [B, capacity, key_heads, D], [B, capacity, Hkv, Dv]
  int64_t length = 0;                    // filled rows; the new token goes to row `length`
  std::optional<torch::Tensor> key_starts = {};  // [B]
  std::optional<int64_t> window = {};
};

/// True if `token_layer` supports this: float32 in host memory, x [B, 1, E] with few rows, no
/// gradients to record, and a fused backend for the attention.
bool takes_token(const torch::Tensor& x, const TokenLayer& layer);

/// Computes a layer, x [B, 1, E] -> [B, 1, E], and writes the token's keys and values to the cache.
torch::Tensor token_layer(const torch::Tensor& x, const TokenLayer& layer, const TokenPast& past);

}  // namespace diffattn
