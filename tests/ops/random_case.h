// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "diffattn/ops.h"

namespace diffattn::testing {

/// A random call of `attention`: one seed gives shapes, layouts and options.
struct RandomCase {
  std::string text;                    // for failure messages
  std::vector<torch::Tensor> tensors;  // q1 q2 k1 k2 v lambda [norm_weight] [additive mask]
  AttentionOptions options;            // without norm_weight and additive mask
  int64_t norm_weight_at = -1, mask_at = -1;

  /// Returns the options with norm_weight and additive mask taken from `leaves`.
  AttentionOptions options_with(const std::vector<torch::Tensor>& leaves) const {
    AttentionOptions result = options;
    if (norm_weight_at >= 0) result.norm_weight(leaves[norm_weight_at]);
    if (mask_at >= 0) result.mask(leaves[mask_at]);
    return result;
  }
};

inline RandomCase make_random_case(uint64_t seed, torch::ScalarType dtype) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  const auto coin = [&](int one_in) { return pick(1, one_in) == 1; };
  torch::manual_seed(seed);
  RandomCase c;
  c.text = "seed " + std::to_string(seed);
  const int64_t kv_heads = pick(1, 3), group = std::array{1, 2, 4}[pick(0, 2)];
  const int64_t heads = kv_heads * group;
  const int64_t noise_heads = coin(2) ? heads : group == 4 && coin(2) ? 2 * kv_heads : kv_heads;
  if (noise_heads != heads) c.text += " shared noise heads";
  const int64_t width = pick(1, 20), value_width = coin(2) ? 2 * width : pick(1, 24);
  const bool packed = coin(3);
  std::vector<int64_t> lengths_q, lengths_k;
  const int64_t batch = pick(1, 3);
  int64_t rows = pick(1, 12), columns = pick(1, 14);
  if (packed) {
    std::vector<int> offsets_q{0}, offsets_k{0};
    for (int64_t b = 0; b < batch; ++b) {
      lengths_k.push_back(pick(0, 9));
      offsets_q.push_back(offsets_q.back() + static_cast<int>(pick(0, 9)));
      offsets_k.push_back(offsets_k.back() + static_cast<int>(lengths_k.back()));
    }
    c.options.cu_seqlens_q(torch::tensor(offsets_q, torch::kInt));
    c.options.cu_seqlens_k(torch::tensor(offsets_k, torch::kLong));
    rows = offsets_q.back();
    columns = offsets_k.back();
    c.text += " packed";
  } else {
    lengths_k.assign(batch, columns);
  }

  // Returns a tensor [B, L, H, W] (packed [total, H, W]); half of the time a strided view.
  const auto activation = [&](int64_t length, int64_t head_count, int64_t size) {
    const auto options = torch::TensorOptions().dtype(dtype);
    torch::Tensor t;
    if (coin(2)) {
      t = packed ? torch::randn({head_count, length, size + 3}, options).transpose(0, 1)
                 : torch::randn({batch, head_count, length, size + 3}, options).transpose(1, 2);
      return t.slice(-1, 2, 2 + size);
    }
    return packed ? torch::randn({length, head_count, size}, options)
                  : torch::randn({batch, length, head_count, size}, options);
  };
  c.tensors = {activation(rows, heads, width), activation(rows, noise_heads, width),
               activation(columns, kv_heads, width), activation(columns, kv_heads, width),
               activation(columns, kv_heads, value_width)};
  if (coin(4)) c.tensors[3] = c.tensors[2];
  const auto wide = dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const std::vector<std::vector<int64_t>> lambda_shapes{
      {},
      {1},
      {heads},
      packed ? std::vector<int64_t>{rows, heads} : std::vector<int64_t>{batch, rows, heads}};
  c.tensors.push_back(torch::randn(lambda_shapes[pick(0, 3)], wide));

  if (coin(2)) c.options.causal(true), c.text += " causal";
  if (coin(4)) {
    c.options.window(pick(0, 6)), c.text += " window";
  } else if (coin(3)) {
    c.options.window(pick(-1, 5), pick(-1, 5)), c.text += " window of two bounds";
  }
  if (coin(3)) c.options.scale(0.7);
  if (coin(3)) c.options.scale2(-0.2), c.text += " scale2";
  c.options.out_scale(coin(2) ? 1.0 : -0.3);
  std::vector<int64_t> starts, lengths;
  for (const int64_t n : lengths_k) {
    starts.push_back(pick(0, n));
    lengths.push_back(pick(0, n));
  }
  if (coin(4)) c.options.key_starts(torch::tensor(starts)), c.text += " key_starts";
  if (coin(4)) c.options.key_lengths(torch::tensor(lengths)), c.text += " key_lengths";
  if (coin(2)) {
    c.options.norm_eps(1e-3), c.text += " norm";
    if (coin(2)) {
      c.norm_weight_at = static_cast<int64_t>(c.tensors.size());
      c.tensors.push_back(torch::randn({value_width}, wide));
    }
  }
  if (coin(3)) {
    const auto axis = [&](int64_t size) { return coin(2) ? size : int64_t{1}; };
    const std::vector<int64_t> shape{axis(batch), axis(heads), axis(packed ? 9 : rows),
                                     axis(packed ? 9 : columns)};
    if (coin(2)) {
      c.options.mask(torch::rand(shape) < 0.6), c.text += " boolean mask";
    } else {
      c.mask_at = static_cast<int64_t>(c.tensors.size());
      c.tensors.push_back(
          torch::randn(shape, wide).masked_fill(torch::rand(shape) < 0.2, -INFINITY));
      c.text += " additive mask";
    }
  }
  return c;
}

}  // namespace diffattn::testing
