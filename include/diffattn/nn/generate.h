// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "diffattn/nn/decoder.h"

namespace diffattn::nn {

/// How the next token is chosen.
struct SamplingOptions {
  TORCH_ARG(int64_t, max_new_tokens) = 64;
  /// 0: the likeliest token, always the same.
  TORCH_ARG(double, temperature) = 0.0;
  /// Only the k likeliest tokens; 0: all.
  TORCH_ARG(int64_t, top_k) = 0;
  /// Only the likeliest tokens that together have this probability; 1: all.
  TORCH_ARG(double, top_p) = 1.0;
  /// Divides positive and multiplies negative logits of tokens that occurred; 1: off.
  TORCH_ARG(double, repetition_penalty) = 1.0;
  TORCH_ARG(uint64_t, seed) = 0;
  /// A row ends with one of these; the token itself is part of the result.
  TORCH_ARG(std::vector<int64_t>, stop_tokens);
};

/// Called with every new token of every row; false ends that row.
using OnToken = std::function<bool(size_t row, int64_t token)>;

/// Continues each prompt (at least one token each) with a KV cache; prompts of different lengths
/// are padded on the left and do not see the padding. Returns the new tokens of each row. Throws
/// c10::Error for an empty prompt, a token beyond the vocabulary, or options out of range.
std::vector<std::vector<int64_t>> generate(CausalLMImpl& model,
                                           const std::vector<std::vector<int64_t>>& prompts,
                                           const SamplingOptions& options,
                                           const OnToken& on_token = {});

}  // namespace diffattn::nn
