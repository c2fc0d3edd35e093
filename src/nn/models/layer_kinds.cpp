// SPDX-License-Identifier: Apache-2.0
#include "nn/models/layer_kinds.h"

namespace diffattn::nn {
namespace {

/// SambaY: the first half alternates Mamba and window attention. The next two layers leave their
/// memory, and their keys and values, to the second half, which has gates and readers only.
std::vector<LayerKind> sambay_kinds(int64_t layers) {
  if (layers < 4 || layers % 4 != 0) {
    throw_argument_error("num_hidden_layers", "a multiple of 4", std::to_string(layers));
  }
  const int64_t half = layers / 2;
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < layers; ++i) {
    if (i % 2 == 0) {
      kinds.push_back(i < half    ? LayerKind::kMamba
                      : i == half ? LayerKind::kMambaMemory
                                  : LayerKind::kGatedMemory);
    } else {
      kinds.push_back(i < half        ? LayerKind::kWindowAttention
                      : i == half + 1 ? LayerKind::kOwnerAttention
                                      : LayerKind::kReaderAttention);
    }
  }
  return kinds;
}

}  // namespace

const char* layer_kind_text(LayerKind kind) {
  switch (kind) {
    case LayerKind::kAttention: return "attention";
    case LayerKind::kWindowAttention: return "window attention";
    case LayerKind::kOwnerAttention: return "attention that owns the shared keys";
    case LayerKind::kReaderAttention: return "attention to the shared keys";
    case LayerKind::kMamba: return "Mamba";
    case LayerKind::kMambaMemory: return "Mamba that leaves the memory";
    case LayerKind::kGatedMemory: break;
  }
  return "gated memory";
}

bool has_maps(LayerKind kind) {
  return kind == LayerKind::kAttention || kind == LayerKind::kWindowAttention ||
         kind == LayerKind::kOwnerAttention || kind == LayerKind::kReaderAttention;
}

std::vector<LayerKind> layer_kinds(const ModelConfig& config) {
  if (config.family == ModelFamily::kSambaY) return sambay_kinds(config.num_hidden_layers);
  return std::vector<LayerKind>(static_cast<size_t>(config.num_hidden_layers),
                                LayerKind::kAttention);
}

}  // namespace diffattn::nn
