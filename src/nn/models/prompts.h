// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

#include "diffattn/nn/generate.h"

namespace diffattn::nn {

/// Throws diffattn::Error for an empty prompt, a token outside the vocabulary, or an option out of
/// range.
void check_generation(const CausalLMImpl& model, const std::vector<std::vector<int64_t>>& prompts,
                      const SamplingOptions& options);

/// Prompts [B, N] with left padding, the first token of each, and positions.
struct PaddedPrompts {
  torch::Tensor ids, starts, positions;  // [B, N], [B], [B, N]
};
PaddedPrompts pad_left(const std::vector<std::vector<int64_t>>& prompts, torch::Device device);

}  // namespace diffattn::nn
