// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// The architecture of a model.
enum class ModelKind {
  kDecoder,         // causal language model; model_type "diffllama", "llama" or "diffattn"
  kEncoder,         // bidirectional; model_type "diff_encoder"
  kEncoderDecoder,  // text to text; model_type "diff_encoder_decoder"
};

/// The layers of a model, and how its config.json and its parameters spell their names.
enum class ModelFamily {
  kLlama,   // DiffBlocks around the preset `attention`
  kMotif,   // Motif-2: grouped differential attention, PolyNorm; model_type "motif"
  kSambaY,  // Phi-4-mini-flash: Mamba, differential attention, gated memory; "phi4flash"
};

/// The configuration of a model: the keys of Hugging Face's config.json for DiffLlama and Llama,
/// and `attention`, which replaces their `model_type`. Head counts are those of the Transformer of
/// equal size: they count the sub-heads of a differential layer.
struct ModelConfig {
  ModelKind kind = ModelKind::kDecoder;
  std::string attention = "diffllama";  // name of a preset; "transformer" is Llama
  int64_t vocab_size = 32000;
  int64_t hidden_size = 2048;
  int64_t intermediate_size = 8192;
  int64_t num_hidden_layers = 16;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 64;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double initializer_range = 0.02;
  double lambda_std_dev = 0.1;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  RotaryOptions rope_parameters = RotaryOptions().style(RotaryStyle::kHalfSplit);
  std::optional<int64_t> pad_token_id, bos_token_id, eos_token_id;

  ModelFamily family = ModelFamily::kLlama;
  /// Motif only: noise heads (0: half of the heads), and the eps of the norm of each head.
  int64_t num_noise_heads = 0;
  double attn_rms_norm_eps = 1e-5;
  /// SambaY only: keys that a window layer sees, and the sizes of the Mamba layers; rms_norm_eps is
  /// the eps of the LayerNorms.
  int64_t sliding_window = 0;
  int64_t mamba_d_state = 16, mamba_d_conv = 4, mamba_expand = 2, mamba_dt_rank = 0;
  bool mamba_conv_bias = true, mamba_proj_bias = false;

  /// Ablations: no head norm; one lambda_init for all layers. Only for presets with two maps that
  /// `preset_options` supports.
  bool head_norm = true;
  std::optional<double> lambda_init;
  bool ablated() const { return !head_norm || lambda_init.has_value(); }

  /// Encoder-decoder only: blocks of the encoder; 0: num_hidden_layers, as the decoder.
  int64_t num_encoder_layers = 0;
  /// Encoder-decoder only: the first token of every text.
  std::optional<int64_t> decoder_start_token_id;

  /// Names of the classes, in the order of a classifier's outputs (`id2label`). Empty: the model
  /// has no classifier.
  std::vector<std::string> labels;
  /// The hidden state that a classifier reads: "cls" (first token), "last" (last token that is not
  /// padding) or "mean" (over tokens that are not padding).
  std::string classifier_pooling = "mean";
  double classifier_dropout = 0.1;
  /// Width of the classifier's hidden layer; 0: half of hidden_size.
  int64_t classifier_hidden_size = 0;
};

/// The tokens that a block's attention sees.
enum class AttentionRole { kCausal, kBidirectional, kCross };

/// Makes the attention of a model's layer; the first layer has index 0. Throws diffattn::Error
/// naming an option that the preset does not support.
std::shared_ptr<AttentionLayer> make_attention(const ModelConfig& config, int64_t layer,
                                               AttentionRole role = AttentionRole::kCausal);

}  // namespace diffattn::nn
