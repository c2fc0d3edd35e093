// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>

#include "diffattn/nn/model_config.h"

namespace diffattn::models {

/// Reads `<folder>/config.json`. Checks the type and range of every key, and warns about unknown
/// keys. Throws io::Error, also for values that this library does not support, such as another
/// activation or attention dropout.
nn::ModelConfig read_model_config(const std::string& folder);

/// Returns the text of a config.json from which read_model_config() restores the config. `dtype` is
/// the type of the weights.
std::string model_config_text(const nn::ModelConfig& config, torch::ScalarType dtype);

}  // namespace diffattn::models
