// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "diffattn/nn/decoder.h"

namespace diffattn::nn {

/// Rules for choosing the next token.
struct SamplingOptions {
  TORCH_ARG(int64_t, max_new_tokens) = 64;
  /// 0: always the likeliest token.
  TORCH_ARG(double, temperature) = 0.0;
  /// Samples only from the k likeliest tokens; 0: from all.
  TORCH_ARG(int64_t, top_k) = 0;
  /// Samples only from the likeliest tokens that together have this probability; 1: from all.
  TORCH_ARG(double, top_p) = 1.0;
  /// Divides positive and multiplies negative logits of tokens that have occurred; 1: off.
  TORCH_ARG(double, repetition_penalty) = 1.0;
  /// Subtracted from the logits of tokens that were generated.
  TORCH_ARG(double, presence_penalty) = 0.0;
  /// Subtracted from the logit of a token once for each time that it was generated.
  TORCH_ARG(double, frequency_penalty) = 0.0;
  TORCH_ARG(uint64_t, seed) = 0;
  /// Tokens that end a row. The result includes them.
  TORCH_ARG(std::vector<int64_t>, stop_tokens);
};

/// Callback for every new token of every row. Returning false ends that row.
using OnToken = std::function<bool(size_t row, int64_t token)>;

/// Continues each prompt, of at least one token, with a KV cache. Pads shorter prompts on the left
/// and masks the padding. Returns the new tokens of each row. Throws diffattn::Error for an
/// empty prompt, a token outside the vocabulary, an option out of range, or logits that are not
/// finite.
std::vector<std::vector<int64_t>> generate(CausalLMImpl& model,
                                           const std::vector<std::vector<int64_t>>& prompts,
                                           const SamplingOptions& options,
                                           const OnToken& on_token = {});

}  // namespace diffattn::nn
