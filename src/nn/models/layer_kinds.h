// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/nn/model_config.h"

namespace diffattn::nn {

/// The part of a decoder layer that mixes tokens.
enum class LayerKind {
  kAttention,        // causal attention
  kWindowAttention,  // causal attention to the last `sliding_window` tokens
  kOwnerAttention,   // causal attention; later layers read its keys and values
  kReaderAttention,  // causal attention to the keys and values of the owner
  kMamba,            // a selective scan
  kMambaMemory,      // a selective scan; later layers read its output before the gate
  kGatedMemory,      // a gate on that memory
};

/// Returns a noun for messages, for example "Mamba".
const char* layer_kind_text(LayerKind kind);

/// True if layers of this kind have attention maps.
bool has_maps(LayerKind kind);

/// Returns the kinds of all layers of a decoder. Throws diffattn::Error naming num_hidden_layers if
/// the family has no such stack.
std::vector<LayerKind> layer_kinds(const ModelConfig& config);

}  // namespace diffattn::nn
