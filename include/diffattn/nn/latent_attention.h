// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rms_norm.h"

namespace diffattn::nn {

/// YaRN: stretches the slow rotary frequencies by `factor`.
struct YarnOptions {
  TORCH_ARG(double, factor) = 1.0;
  TORCH_ARG(int64_t, original_max_position_embeddings) = 4096;
  TORCH_ARG(double, beta_fast) = 32.0;
  TORCH_ARG(double, beta_slow) = 1.0;
};

/// How a layer multiplies queries with latent keys. Both forms compute the same function.
enum class LatentForm {
  kAuto,      // absorbed for a few new tokens after a filled cache, else expanded
  kExpanded,  // makes the keys and values of every head from the latents
  kAbsorbed,  // takes the queries to the latent space, so that all heads share one key
};

/// Sizes of LatentDiffAttention, with the names of Motif-3's config.json where it has them.
struct LatentAttentionOptions {
  LatentAttentionOptions(int64_t hidden_size, int64_t num_attention_heads)
      : hidden_size_(hidden_size), num_attention_heads_(num_attention_heads) {}

  TORCH_ARG(int64_t, hidden_size);
  /// Signal and noise heads.
  TORCH_ARG(int64_t, num_attention_heads);
  TORCH_ARG(int64_t, num_key_value_heads) = 1;
  TORCH_ARG(int64_t, num_noise_heads) = 1;
  /// Width of queries and keys; the last qk_rope_head_dim of them rotate.
  TORCH_ARG(int64_t, head_dim) = 192;
  TORCH_ARG(int64_t, qk_rope_head_dim) = 64;
  TORCH_ARG(int64_t, v_head_dim) = 128;
  TORCH_ARG(int64_t, q_lora_rank) = 1024;
  TORCH_ARG(int64_t, kv_lora_rank) = 512;
  /// Multiplies the heads' output by sigmoid(wq_b_gate a), element by element.
  TORCH_ARG(bool, output_gate) = true;
  TORCH_ARG(double, rms_norm_eps) = 1e-5;
  TORCH_ARG(double, rope_theta) = 10000.0;
  TORCH_ARG(std::optional<YarnOptions>, yarn);
  /// Multiplies the scale head_dim^-1/2 of the scores.
  TORCH_ARG(double, scale_factor) = 1.0;
  TORCH_ARG(LatentForm, form) = LatentForm::kAuto;
  // Last of all: g++ 12 at -O2 loses the next member that is set after this one, where this stands
  // before numbers.
  /// Each token sees itself and this many earlier tokens; none: all earlier tokens.
  TORCH_ARG(std::optional<int64_t>, sliding_window);
};

/// Returns Motif-3's scale factor for contexts beyond the trained length.
double yarn_scale_factor(double mscale, double factor);

/// Returns the published options of a layer of Motif-3. Layers 0, 4, 8, ... attend to all earlier
/// tokens, with positions that YaRN scales; the others attend to 128 tokens. Throws diffattn::Error
/// for a negative layer.
LatentAttentionOptions motif_3_options(int64_t layer);

/// Grouped differential latent attention (Motif-3). The cache holds a normed latent c and one
/// rotated key part per token; wkv_b makes the keys and values of all heads from c. In a group of
/// heads the last one is the noise head of the others: y = O_signal - sigmoid(lambda_proj x)
/// O_noise.
///
/// Parameters have Motif-3's names, without biases: wq_a, q_norm, wq_b, wq_b_gate, wkv_a, kv_norm,
/// wkv_b, lambda_proj, wo.
class LatentDiffAttentionImpl : public AttentionLayer {
 public:
  /// Throws diffattn::Error naming the option if sizes contradict each other.
  explicit LatentDiffAttentionImpl(const LatentAttentionOptions& options);
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;
  std::optional<int64_t> needed_rows() const override { return options.sliding_window(); }
  void scale_lambda(double factor) override { lambda_factor_ = factor; }

  LatentAttentionOptions options;
  torch::nn::Linear wq_a{nullptr}, wq_b{nullptr}, wq_b_gate{nullptr}, wkv_a{nullptr};
  torch::nn::Linear wkv_b{nullptr}, lambda_proj{nullptr}, wo{nullptr};
  RMSNorm q_norm{nullptr}, kv_norm{nullptr};

 private:
  /// The latents and rotated key parts of all tokens that the queries may see.
  struct Latents {
    torch::Tensor c, k_pe;  // [B, N, kv_lora_rank], [B, N, rope]
  };
  void check_input(const AttentionInput& input) const;
  torch::Tensor frequencies() const;
  torch::Tensor rotated(const torch::Tensor& heads, const torch::Tensor& positions) const;
  torch::Tensor positions_of(const AttentionInput& input) const;
  HeadTensors expanded(const torch::Tensor& q, const Latents& latents) const;
  HeadTensors absorbed(const torch::Tensor& q, const Latents& latents) const;
  /// Returns wkv_b as [kv_heads, nope + v, kv_lora_rank].
  torch::Tensor head_maps() const;

  double lambda_factor_ = 1.0;
};
TORCH_MODULE(LatentDiffAttention);

}  // namespace diffattn::nn
