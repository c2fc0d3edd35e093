// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/attention_options.h"
#include "diffattn/nn/kv_cache.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// Differential attention with its projections: x -> q, k, v -> heads -> out. The options cover the
/// published variants.
///
/// Parameters, with the names of `options.names()` (here the defaults): q_proj.weight
/// [query_heads d, E], k_proj.weight [key_heads d, C], v_proj.weight [Hkv Dv, C], out_proj.weight
/// [E, H Dv] and their biases; lambda_q1, lambda_k1, lambda_q2, lambda_k2 [d], or
/// lambda_proj.weight [H, E], or lambda []; subln.weight [Dv]. Initial values: projections as in
/// torch's Linear, lambda vectors N(0, lambda_std^2), the weight of the norm 1.
class MultiheadDiffAttentionImpl : public AttentionLayer {
 public:
  /// Throws `diffattn::Error` naming the option if options contradict each other.
  explicit MultiheadDiffAttentionImpl(MultiheadDiffAttentionOptions options);

  /// See AttentionInput for shapes.
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;

  /// Computes self-attention over x [B, M, E] with the masks of the options.
  torch::Tensor forward(const torch::Tensor& x) { return forward(AttentionInput{.x = x}); }

  /// Returns the arguments of the `attention` call for this input. Appends to the input's cache.
  HeadTensors head_tensors(const AttentionInput& input);

  /// Returns lambda as `forward` uses it: one number, or [..., H] for LambdaKind::kToken.
  /// LambdaPrecision::kReference rounds to the type `activations`.
  torch::Tensor lambda(const torch::Tensor& x, torch::ScalarType activations);

  std::optional<RotaryTable> angles(const AttentionInput& input) override;
  std::optional<TokenAttention> token_attention(const AttentionInput& input) const override;
  TokenPast token_past(const AttentionInput& input) override;
  std::optional<StepAttention> step_attention() override;
  void scale_lambda(double factor) override { lambda_factor_ = factor; }
  bool keeps_cache() const override { return options.key_sharing() != KeySharing::kReader; }
  std::optional<int64_t> needed_rows() const override;
  bool shares_tensors() const override { return options.key_sharing() != KeySharing::kNone; }

  /// Draws new parameters.
  void reset_parameters();

  /// Changes how later calls compute the attention, but not the function they compute.
  void set_route(Route route) { options.route(route); }

  void pretty_print(std::ostream& stream) const override;

  MultiheadDiffAttentionOptions options;
  const AttentionSizes sizes;

 protected:
  struct KeysAndValues {
    torch::Tensor k, v;  // [B, N, key_heads, D], [B, N, Hkv, Dv]
  };

  // Shared-DIFF overrides all three.
  /// True if q, k and v are x times q_proj, k_proj and v_proj.
  virtual bool has_linear_projections() const { return true; }
  virtual torch::Tensor query(const torch::Tensor& x);
  virtual KeysAndValues project_keys_and_values(const torch::Tensor& source);

  std::optional<double> lambda_number() const;
  torch::Tensor unscaled_lambda(const torch::Tensor& x, torch::ScalarType activations);
  void register_projections();
  void register_lambda_and_norm();
  KeysAndValues keys_and_values(const AttentionInput& input, const RotaryTable& table);
  /// Computes q, k and v as one product, where that is faster.
  std::optional<HeadTensors> merged_heads(const AttentionInput& input, const RotaryTable& table);
  AttentionOptions operation_options(const AttentionMask& mask) const;
  void check_input(const AttentionInput& input) const;

  torch::nn::Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, qkv_proj_{nullptr};
  torch::nn::Linear out_proj_{nullptr}, lambda_proj_{nullptr};
  torch::Tensor lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_, lambda_, norm_weight_;
  Rotary rotary_{nullptr};
  double lambda_factor_ = 1.0;
};
TORCH_MODULE(MultiheadDiffAttention);

}  // namespace diffattn::nn
