// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/ops/golden.h"

namespace diffattn::testing {

/// Hugging Face DiffLlama around the `attention` operator, for comparison with recorded runs.
class DiffLlama {
 public:
  explicit DiffLlama(const std::string& folder);

  struct Result {
    std::vector<torch::Tensor> hidden;  // embeddings, then each layer's output; the last one normed
    torch::Tensor logits;
  };

  /// ids [B, N]; mask [B, N], 0 at left padding. Positions count from the first column.
  Result forward(const torch::Tensor& ids, const torch::Tensor& mask) const;

  /// Continues ids [1, N] by `count` tokens, each the likeliest.
  torch::Tensor greedy(const torch::Tensor& ids, int64_t count) const;

 private:
  torch::Tensor attend(const torch::Tensor& x, int64_t layer,
                       const torch::Tensor& key_starts) const;
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor weight(const std::string& name) const { return weights_.at(name + ".weight"); }

  Tensors weights_;
  int64_t layers_, heads_, kv_heads_, head_dim_;
  double eps_, rope_theta_;
};

}  // namespace diffattn::testing
