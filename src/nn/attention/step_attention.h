// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/attention_options.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// The parameters of an attention layer, for code that computes it without the module: generation
/// on a GPU. Tensors are those of the module, or rows of them.
struct StepAttention {
  /// weight [out, in], bias [out] or undefined.
  struct Map {
    torch::Tensor weight = {}, bias = {};
  };
  Map q = {}, k = {}, v = {}, out = {};
  Map lambda_proj = {};        // weight undefined unless lambda is computed from x
  torch::Tensor lambda = {};   // one number, float32; undefined if it is computed from x
  double lambda_factor = 1.0;  // multiplies a lambda that is computed from x
  AttentionKind kind = AttentionKind::kV1;
  AttentionSizes sizes = {};
  int64_t noise_heads = 0;  // grouped only
  bool halves = false;      // HeadLayout::kHalves
  double scale = 1.0, scale2 = 1.0;
  std::optional<double> norm_eps = {};  // of the head norm
  torch::Tensor norm_weight = {};       // [Dv]; undefined = ones
  std::optional<int64_t> window = {};
  Rotary rotary{nullptr};
};

}  // namespace diffattn::nn
