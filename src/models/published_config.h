// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "diffattn/nn/model_config.h"
#include "models/config_reader.h"

/// The keys of config.json that only published decoders have: Motif-2 and Phi-4-mini-flash.
namespace diffattn::models {

/// Sets the family if `model_type` names a published decoder. Returns false for other types. Throws
/// io::Error for Motif-3, whose model is not supported.
bool set_published_family(const io::JsonValue& root, nn::ModelConfig& config);

/// Sets the family's defaults. Throws io::Error if a size that has none is missing.
void set_published_defaults(ConfigReader& reader, nn::ModelConfig& config);

/// Reads the keys that other models do not have. Throws io::Error for values that the published
/// models do not use.
void read_published_keys(ConfigReader& reader, nn::ModelConfig& config);

/// Replaces the keys of a Llama by those of the family.
void write_published_keys(nlohmann::json& json, const nn::ModelConfig& config);

}  // namespace diffattn::models
