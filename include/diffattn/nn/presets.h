// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/attention_options.h"

namespace diffattn::nn {

/// The sizes of a published attention, named as in config.json. As there, head counts are those of
/// the Transformer of equal size: they count sub-heads, and a pair of sub-heads is one differential
/// head.
struct PresetOptions {
  PresetOptions(int64_t hidden_size, int64_t num_attention_heads)
      : hidden_size_(hidden_size), num_attention_heads_(num_attention_heads) {}

  TORCH_ARG(int64_t, hidden_size);
  TORCH_ARG(int64_t, num_attention_heads);
  /// Default: num_attention_heads.
  TORCH_ARG(std::optional<int64_t>, num_key_value_heads);
  /// Default: hidden_size / num_attention_heads.
  TORCH_ARG(std::optional<int64_t>, head_dim);
  TORCH_ARG(int64_t, layer_index) = 0;
  /// Biases of the q, k, v and output projections. Default: as published.
  TORCH_ARG(std::optional<bool>, attention_bias);
  TORCH_ARG(double, rms_norm_eps) = 1e-5;
  TORCH_ARG(double, lambda_std_dev) = 0.1;
  TORCH_ARG(bool, causal) = true;
  TORCH_ARG(std::optional<int64_t>, window);
  TORCH_ARG(bool, cross_attention) = false;
  TORCH_ARG(std::optional<int64_t>, context_dim);
  TORCH_ARG(double, dropout) = 0.0;
  /// The preset sets the style.
  TORCH_ARG(RotaryOptions, rope_parameters);
};

/// Returns all names: "microsoft_v1", "microsoft_v2", "diffllama", "phi4_flash", "motif_2_6b",
/// "motif_2_12_7b", "dint", "introspective", "temperature", "transformer".
const std::vector<std::string>& preset_names();

/// Returns the options of a preset. Throws for an unknown name, for "introspective", which has
/// other options, and for an odd head count if heads come in pairs. Cross-attention has no rotary
/// embedding.
MultiheadDiffAttentionOptions preset_options(const std::string& preset,
                                             const PresetOptions& options);

/// Makes the layer of a preset. Throws as `preset_options` and the layer do.
std::shared_ptr<AttentionLayer> make_preset(const std::string& preset,
                                            const PresetOptions& options);

/// Prints one line: the preset, its number of parameters and its layer.
void print_preset(std::ostream& stream, const std::string& preset, const PresetOptions& options);

}  // namespace diffattn::nn
