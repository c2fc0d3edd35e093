// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "diffattn/convert/convert.h"

namespace diffattn::convert {

/// What a config.json says, checked. Head counts are as written there: sub-heads of V1 models,
/// output heads of V2.
struct Model {
  std::string path;  // of config.json
  nlohmann::json config;
  Format format = Format::kDiffLlama;
  std::int64_t layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t noise_heads = 0;  // Motif 12.7B; else 0
  double rms_norm_eps = 1e-5, initializer_range = 0.02;
  bool tied = false, attention_bias = false, mlp_bias = false;

  std::int64_t pairs() const { return heads / 2; }
  std::int64_t kv_pairs() const { return kv_heads / 2; }
};

/// Reads `<folder>/config.json`. Every number is checked for type and range, head counts against
/// each other. `from`, where given, must be what the file says or the file must not say.
Model read_model(const std::string& folder, std::optional<Format> from);

/// A config.json for the target: the source's with another type and the given changes. Keys of
/// programs that would run code (`auto_map`) or that describe the source's class are dropped.
std::string target_config(const Model& model, Format to, const nlohmann::json& changes);

/// 0.8 - 0.6 exp(-0.3 layer)
double lambda_init(std::int64_t layer);

/// "model.layers.3.self_attn."
std::string attention_prefix(std::int64_t layer);

}  // namespace diffattn::convert
