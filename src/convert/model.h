// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "diffattn/convert/convert.h"

namespace diffattn::convert {

/// The checked contents of a config.json. Head counts are those of the file: sub-heads of V1
/// models, output heads of V2 models.
struct Model {
  std::string path;  // path of config.json
  nlohmann::json config;
  Format format = Format::kDiffLlama;
  int64_t layers = 0, hidden = 0, intermediate = 0, vocabulary = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t noise_heads = 0;  // Motif 12.7B only
  double rms_norm_eps = 1e-5, initializer_range = 0.02;
  bool tied = false, attention_bias = false, mlp_bias = false;

  int64_t pairs() const { return heads / 2; }
  int64_t kv_pairs() const { return kv_heads / 2; }
};

/// Reads `<folder>/config.json`. Throws io::Error if a number has the wrong type or range, if head
/// counts contradict each other, or if the file names a format other than `from`.
Model read_model(const std::string& folder, std::optional<Format> from);

/// Returns the target's config.json: the source's with another model type and the given changes. It
/// drops keys that make programs run code (`auto_map`) or that describe the source's class.
std::string target_config(const Model& model, Format to, const nlohmann::json& changes);

/// True for published layouts whose models are copied whole, with the same tensor names.
bool copies_whole_models(Format format);

/// Returns 0.8 - 0.6 exp(-0.3 layer).
double lambda_init(int64_t layer);

/// Returns e.g. "model.layers.3.self_attn.".
std::string attention_prefix(int64_t layer);

}  // namespace diffattn::convert
