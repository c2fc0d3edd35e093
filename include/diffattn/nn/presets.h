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

/// The sizes of a published attention. Head counts are those of the equal-size Transformer, as in
/// config.json: sub-heads, so that a pair of them is one differential head.
struct PresetOptions {
  PresetOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}

  TORCH_ARG(int64_t, embed_dim);
  TORCH_ARG(int64_t, num_heads);
  /// Default: num_heads.
  TORCH_ARG(std::optional<int64_t>, num_kv_heads);
  /// Default: embed_dim / num_heads.
  TORCH_ARG(std::optional<int64_t>, head_dim);
  TORCH_ARG(int64_t, layer_index) = 0;
  /// Of q, k, v and the output. Default: as published.
  TORCH_ARG(std::optional<bool>, bias);
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(double, lambda_std) = 0.1;
  TORCH_ARG(bool, causal) = true;
  TORCH_ARG(std::optional<int64_t>, window);
  TORCH_ARG(bool, cross_attention) = false;
  TORCH_ARG(std::optional<int64_t>, context_dim);
  TORCH_ARG(double, dropout) = 0.0;
  /// theta, width and scaling; the preset decides the style.
  TORCH_ARG(RotaryOptions, rotary);
};

/// "microsoft_v1", "microsoft_v2", "diffllama", "phi4_flash", "motif_2_6b", "motif_2_12_7b",
/// "dint", "introspective", "temperature", "transformer".
const std::vector<std::string>& preset_names();

/// The preset as a point in the options space. Throws for unknown names, for "introspective", which
/// is not in it, and for odd head counts where heads come in pairs. "dint" gives the options of its
/// layer. Cross-attention has no rotary embedding.
MultiheadDiffAttentionOptions preset_options(const std::string& preset,
                                             const PresetOptions& options);

/// The preset as a layer, ready to run. Throws as `preset_options` and the layer do.
std::shared_ptr<AttentionLayer> make_preset(const std::string& preset,
                                            const PresetOptions& options);

/// One line: the preset, its layer, its number of parameters.
void print_preset(std::ostream& stream, const std::string& preset, const PresetOptions& options);

}  // namespace diffattn::nn
