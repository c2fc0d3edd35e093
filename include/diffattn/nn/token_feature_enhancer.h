// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Which number a token gets from the attention map A [H, M, N].
enum class TokenWeight {
  /// How sharply the token looks: m_i = mean over heads of max_j A_ij. Row i alone decides, so a
  /// causal layer stays causal. O(N) memory (`attention_stats`).
  kQuery,
  /// How much the token is looked at: m_j = mean over heads of sum_i A_ij, over rows i that are not
  /// padding; sum_j m_j / N = 1 - lambda. For bidirectional self-attention only. Maps exist in
  /// blocks of rows of 8 MiB, some twenty of them at the peak of the backward pass, which computes
  /// them again.
  kKey,
};

/// m [B, M, 1] (packed [total, 1]) in float32 (float64), with gradients. Throws for kKey when the
/// map is causal, or its columns are not the tokens of its rows.
torch::Tensor token_weights(const HeadTensors& heads, TokenWeight weight);

/// The same, averaged over every call of a layer.
torch::Tensor token_weights(const AttentionTrace& trace, TokenWeight weight);

struct TokenFeatureEnhancerOptions {
  /*implicit*/ TokenFeatureEnhancerOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// The scale network narrows to dim / reduction.
  TORCH_ARG(int64_t, reduction) = 4;
};

/// Scales every feature of a token by what the token itself and the attention map say:
/// y = x * sigmoid(W2 relu(W1 x + b1) + b2) * (1 + m).
class TokenFeatureEnhancerImpl : public torch::nn::Cloneable<TokenFeatureEnhancerImpl> {
 public:
  explicit TokenFeatureEnhancerImpl(const TokenFeatureEnhancerOptions& options);
  void reset() override;

  /// x [B, M, dim], m [B, M, 1] -> [B, M, dim]; packed without the axis B.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& m);

  TokenFeatureEnhancerOptions options;
  torch::nn::Linear narrow{nullptr}, widen{nullptr};  // W1 [dim / reduction, dim] and W2
};

TORCH_MODULE(TokenFeatureEnhancer);

}  // namespace diffattn::nn
