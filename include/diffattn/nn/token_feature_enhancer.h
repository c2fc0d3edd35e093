// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// The attention weight m of a token, from the attention map A [H, M, N].
enum class TokenWeight {
  /// Sharpness of the token's attention: m_i = mean over heads of max_j A_ij. It depends on row i
  /// only, so a causal layer stays causal. O(N) memory (`attention_stats`).
  kQuery,
  /// Attention that the token gets: m_j = mean over heads of sum_i A_ij, over rows i that are not
  /// padding; sum_j m_j / N = 1 - lambda. For bidirectional self-attention only. It computes the
  /// map in blocks of rows of 8 MiB, and a second time in the backward pass. The peak memory is
  /// about twenty blocks.
  kKey,
};

/// Computes m [B, M, 1] (packed [total, 1]) in float32 (float64), with gradients. Throws for kKey
/// if the map is causal or not a self-attention.
torch::Tensor token_weights(const HeadTensors& heads, TokenWeight weight);

/// Computes the average of m over all calls of a layer.
torch::Tensor token_weights(const AttentionTrace& trace, TokenWeight weight);

struct TokenFeatureEnhancerOptions {
  /*implicit*/ TokenFeatureEnhancerOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// The hidden width of the scale network is dim / reduction.
  TORCH_ARG(int64_t, reduction) = 4;
};

/// Scales every feature of a token by a function of the token and its attention weight m:
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
