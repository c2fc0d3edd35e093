// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/information_flow_gate.h"
#include "diffattn/nn/noise_reduction.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/nn/swiglu.h"
#include "diffattn/nn/token_feature_enhancer.h"

namespace diffattn::nn {

struct DiffBlockOptions {
  DiffBlockOptions(int64_t dim, int64_t hidden) : dim_(dim), hidden_(hidden) {}
  TORCH_ARG(int64_t, dim);
  /// Width of the feed-forward layer.
  TORCH_ARG(int64_t, hidden);
  /// Whether the feed-forward layer's projections have biases.
  TORCH_ARG(bool, mlp_bias) = false;
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(NormRounding, norm_rounding) = NormRounding::kOnce;
  /// Whether the block adds x to the attention's result. Default: unless the attention does.
  TORCH_ARG(std::optional<bool>, attention_residual);

  /// The token feature enhancer on the attention's result.
  TORCH_ARG(std::optional<TokenFeatureEnhancerOptions>, enhancer);
  /// Noise reduction on the attention's result, after the enhancer.
  TORCH_ARG(std::optional<NoiseReductionOptions>, noise_reduction);
  /// The gate between what comes out of the block and what went in.
  TORCH_ARG(std::optional<InformationFlowGateOptions>, gate);
  /// The attention weight of a token that the enhancer and the gate read.
  TORCH_ARG(TokenWeight, token_weight) = TokenWeight::kQuery;
};

/// A pre-norm block around any attention of the family:
///
///   a = attention(norm(x));  a = enhancer(a, m);  a = noise_reduction(a, map)      each optional
///   h = x + a;  y = h + mlp(norm(h));  y = gate(y, x, m)                           optional
///
/// with Llama's names for what Llama has. Without options it is a Llama layer. With a
/// cross-attention, h = h + cross(norm(h), context) comes before the feed-forward layer.
class DiffBlockImpl : public torch::nn::Module {
 public:
  DiffBlockImpl(const DiffBlockOptions& options, std::shared_ptr<AttentionLayer> attention,
                std::shared_ptr<AttentionLayer> cross_attention = nullptr);

  /// input.x [B, M, dim] (packed [total, dim]) -> the same shape. Fills `trace` when there is one.
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr);
  /// With cross-attention: `cross` says what it looks at; its x is not read.
  torch::Tensor forward(const AttentionInput& input, const AttentionInput& cross,
                        AttentionTrace* trace = nullptr, AttentionTrace* cross_trace = nullptr);
  torch::Tensor forward(const torch::Tensor& x);

  DiffBlockOptions options;
  std::shared_ptr<AttentionLayer> self_attn;
  std::shared_ptr<AttentionLayer> cross_attn;  // null without
  RMSNorm input_layernorm{nullptr}, cross_attention_layernorm{nullptr};
  RMSNorm post_attention_layernorm{nullptr};
  SwiGLU mlp{nullptr};
  TokenFeatureEnhancer enhancer{nullptr};
  NoiseReduction noise_reduction{nullptr};
  InformationFlowGate gate{nullptr};

 private:
  std::optional<torch::Tensor> next_token(const AttentionInput& input);
  torch::Tensor run(const AttentionInput& input, const AttentionInput* cross, AttentionTrace* trace,
                    AttentionTrace* cross_trace);
};

TORCH_MODULE(DiffBlock);

}  // namespace diffattn::nn
