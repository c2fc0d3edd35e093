// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/nn/model_config.h"

namespace diffattn::app {

/// Layers of a decoder whose queries see the same keys, so that their maps have one shape.
struct LayerGroup {
  std::string name;  // empty if all layers are alike
  std::vector<size_t> layers;
};

/// Returns the groups of layers that have maps.
std::vector<LayerGroup> layer_groups(const nn::ModelConfig& config);

/// Returns a sentence about the layers of each group and about those without maps; empty if all
/// layers are alike.
std::string layer_groups_text(const nn::ModelConfig& config);

}  // namespace diffattn::app
