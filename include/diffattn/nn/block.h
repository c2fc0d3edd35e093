// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/information_flow_gate.h"
#include "diffattn/nn/noise_reduction.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/nn/stack_layer.h"
#include "diffattn/nn/swiglu.h"
#include "diffattn/nn/token_feature_enhancer.h"

namespace diffattn::nn {

struct DiffBlockOptions {
  DiffBlockOptions(int64_t dim, int64_t hidden) : dim_(dim), hidden_(hidden) {}
  TORCH_ARG(int64_t, dim);
  /// Width of the feed-forward layer.
  TORCH_ARG(int64_t, hidden);
  /// Gives the projections of the feed-forward layer biases.
  TORCH_ARG(bool, mlp_bias) = false;
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(NormRounding, norm_rounding) = NormRounding::kOnce;
  /// Adds x to the attention's result. Default: true unless the attention adds it.
  TORCH_ARG(std::optional<bool>, attention_residual);

  /// Token feature enhancer on the attention's result.
  TORCH_ARG(std::optional<TokenFeatureEnhancerOptions>, enhancer);
  /// Noise reduction on the attention's result, after the enhancer.
  TORCH_ARG(std::optional<NoiseReductionOptions>, noise_reduction);
  /// Gate between the output and the input of the block.
  TORCH_ARG(std::optional<InformationFlowGateOptions>, gate);
  /// The attention weight m of a token, which the enhancer and the gate read.
  TORCH_ARG(TokenWeight, token_weight) = TokenWeight::kQuery;
};

/// A pre-norm block around any attention layer:
///
///   a = attention(norm(x));  a = enhancer(a, m);  a = noise_reduction(a, map)
///   h = x + a;  y = h + mlp(norm(h));  y = gate(y, x, m)
///
/// enhancer, noise_reduction and gate are optional; without them the block is a Llama layer, with
/// Llama's parameter names. A cross-attention adds h = h + cross(norm(h), context) before the
/// feed-forward layer.
class DiffBlockImpl : public StackLayer {
 public:
  DiffBlockImpl(const DiffBlockOptions& options, std::shared_ptr<AttentionLayer> attention,
                std::shared_ptr<AttentionLayer> cross_attention = nullptr);

  /// input.x [B, M, dim] (packed [total, dim]) -> the same shape. Appends to `trace` if not null.
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr);
  /// For a block with cross-attention: `cross` is its input, without x.
  torch::Tensor forward(const AttentionInput& input, const AttentionInput& cross,
                        AttentionTrace* trace = nullptr, AttentionTrace* cross_trace = nullptr);
  torch::Tensor forward(const torch::Tensor& x);

  /// Does the same on the residual stream of a stack; the x of both inputs is not read. `cross` is
  /// null without cross-attention.
  void run(ResidualStream& stream, const AttentionInput& input, const AttentionInput* cross,
           AttentionTrace* trace, AttentionTrace* cross_trace) override;

  DiffBlockOptions options;
  RMSNorm input_layernorm{nullptr}, cross_attention_layernorm{nullptr};
  RMSNorm post_attention_layernorm{nullptr};
  SwiGLU mlp{nullptr};
  TokenFeatureEnhancer enhancer{nullptr};
  NoiseReduction noise_reduction{nullptr};
  InformationFlowGate gate{nullptr};

 private:
  std::optional<torch::Tensor> next_token(const AttentionInput& input);
};

TORCH_MODULE(DiffBlock);

}  // namespace diffattn::nn
