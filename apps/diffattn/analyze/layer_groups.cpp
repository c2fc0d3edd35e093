// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/analyze/layer_groups.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "nn/models/layer_kinds.h"

namespace diffattn::app {
namespace {

using nn::LayerKind;

bool is_plain(const nn::ModelConfig& config) {
  const auto kinds =
      config.kind == nn::ModelKind::kDecoder ? nn::layer_kinds(config) : std::vector<LayerKind>{};
  return std::ranges::all_of(kinds, [](LayerKind kind) { return kind == LayerKind::kAttention; });
}

}  // namespace

std::vector<LayerGroup> layer_groups(const nn::ModelConfig& config) {
  const bool plain = is_plain(config);
  LayerGroup full{plain ? "" : "full", {}}, window{"window", {}};
  for (size_t i = 0; i < static_cast<size_t>(config.num_hidden_layers); ++i) {
    const LayerKind kind = plain ? LayerKind::kAttention : nn::layer_kinds(config)[i];
    if (!nn::has_maps(kind)) continue;
    (kind == LayerKind::kWindowAttention ? window : full).layers.push_back(i);
  }
  std::vector<LayerGroup> groups;
  for (LayerGroup& group : {std::ref(window), std::ref(full)}) {
    if (!group.layers.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::string layer_groups_text(const nn::ModelConfig& config) {
  if (is_plain(config)) return "";
  std::string text;
  for (const LayerGroup& group : layer_groups(config)) {
    text += fmt::format("{}: layers {}; ", group.name, fmt::join(group.layers, ", "));
  }
  std::vector<size_t> without;
  const auto kinds = nn::layer_kinds(config);
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (!nn::has_maps(kinds[i])) without.push_back(i);
  }
  return text + fmt::format("layers {} are Mamba layers and gates, which have no attention map",
                            fmt::join(without, ", "));
}

}  // namespace diffattn::app
