// SPDX-License-Identifier: Apache-2.0
#include "models/published_config.h"

#include <algorithm>

#include "diffattn/io/error.h"

namespace diffattn::models {
namespace {

using io::JsonValue;
using nn::ModelConfig;
using nn::ModelFamily;

constexpr int64_t kMotifPositions = 8192;
constexpr double kMotifNormEps = 1e-6;
constexpr int64_t kPhiPositions = 4096, kPhiWindow = 2047;

/// Throws io::Error unless a key is missing or has the value `expected`.
void require_value(ConfigReader& reader, const char* key, double expected) {
  const auto value = reader.find(key);
  if (value && value->to_double() != expected) {
    value->fail(expected == 0.0 ? "0" : std::to_string(static_cast<int64_t>(expected)));
  }
}

void require_flag(ConfigReader& reader, const char* key, bool expected) {
  const auto value = reader.find(key);
  if (value && value->to_bool() != expected) value->fail(expected ? "true" : "false");
}

/// Throws io::Error unless a key is missing or null.
void require_none(ConfigReader& reader, const char* key) {
  if (const auto value = reader.find(key)) value->fail("null");
}

void read_motif(ConfigReader& reader, ModelConfig& c) {
  for (const char* key : {"use_bias", "attention_bias", "qkv_bias"}) {
    bool bias = false;
    reader.read(key, bias);
    c.attention_bias = c.attention_bias || bias;
  }
  c.mlp_bias = c.attention_bias;
  c.attn_rms_norm_eps = 1e-5;
  reader.read("attn_rms_norm_eps", c.attn_rms_norm_eps, 0.0, 1.0);
  if (reader.find("num_noise_heads")) {
    reader.root.at("head_dim");  // its default would count the wrong heads
    reader.read("num_noise_heads", c.num_noise_heads, 1, kMaxCount);
  }
  require_value(reader, "k_ratio", 1.0);
  require_flag(reader, "is_causal", true);
  require_flag(reader, "use_sliding_window", false);
  require_none(reader, "sliding_window");
  require_none(reader, "rope_scaling");
  c.attention = c.num_noise_heads > 0 ? "motif_2_12_7b" : "motif_2_6b";
}

void read_sambay(ConfigReader& reader, ModelConfig& c) {
  c.attention = "phi4_flash";
  c.attention_bias = true;
  c.sliding_window = kPhiWindow;
  reader.read("layer_norm_eps", c.rms_norm_eps, 0.0, 1.0);
  reader.read("sliding_window", c.sliding_window, 1, int64_t{1} << 40);
  reader.read("mamba_d_state", c.mamba_d_state, 1, 1024);
  reader.read("mamba_d_conv", c.mamba_d_conv, 1, 1024);
  reader.read("mamba_expand", c.mamba_expand, 1, 1024);
  reader.read("mamba_conv_bias", c.mamba_conv_bias);
  reader.read("mamba_proj_bias", c.mamba_proj_bias);
  c.mamba_dt_rank = (c.hidden_size + 15) / 16;
  if (const auto rank = reader.find("mamba_dt_rank"); rank && !rank->is_string()) {
    c.mamba_dt_rank = rank->to_int(1, kMaxWidth);
  } else if (rank && rank->to_string(16) != "auto") {
    rank->fail("a number or \"auto\"");
  }
  require_value(reader, "mb_per_layer", 2.0);
  require_value(reader, "embd_pdrop", 0.0);
  require_value(reader, "resid_pdrop", 0.0);
  require_flag(reader, "lm_head_bias", false);
  require_flag(reader, "mlp_bias", false);
  require_none(reader, "rope_scaling");
}

}  // namespace

bool set_published_family(const JsonValue& root, ModelConfig& config) {
  const JsonValue type = root.at("model_type");
  std::string name = type.to_string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  });
  if (name == "phi4flash") {
    config.family = ModelFamily::kSambaY;
    return true;
  }
  if (name != "motif") return false;
  if (const auto attention = root.find("attention_cls");
      attention && attention->to_string(64) == "gdla") {
    attention->fail("a Motif-2 model; this library has only the attention of Motif-3");
  }
  config.family = ModelFamily::kMotif;
  return true;
}

void set_published_defaults(ConfigReader& reader, ModelConfig& c) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    reader.root.at(key);
  }
  const bool motif = c.family == ModelFamily::kMotif;
  c.max_position_embeddings = motif ? kMotifPositions : kPhiPositions;
  c.rms_norm_eps = motif ? kMotifNormEps : 1e-5;
  c.tie_word_embeddings = !motif;
}

void read_published_keys(ConfigReader& reader, ModelConfig& c) {
  if (c.family == ModelFamily::kMotif) {
    read_motif(reader, c);
  } else {
    read_sambay(reader, c);
  }
}

void write_published_keys(nlohmann::json& json, const ModelConfig& c) {
  json.erase("attention_bias");
  json.erase("rope_parameters");
  json["rope_theta"] = c.rope_parameters.rope_theta();
  json["lambda_std_dev"] = c.lambda_std_dev;
  if (c.family == ModelFamily::kMotif) {
    json["model_type"] = "Motif";  // as the vendor spells it
    json["architectures"] = {"MotifForCausalLM"};
    json["hidden_act"] = "poly_norm";
    json["use_bias"] = c.attention_bias;
    json["attn_rms_norm_eps"] = c.attn_rms_norm_eps;
    json["rope_scaling"] = nullptr;
    if (c.num_noise_heads > 0) json["num_noise_heads"] = c.num_noise_heads;
    return;
  }
  json["model_type"] = "phi4flash";
  json["architectures"] = {"Phi4FlashForCausalLM"};
  json.erase("rms_norm_eps");
  json["layer_norm_eps"] = c.rms_norm_eps;
  json["sliding_window"] = c.sliding_window;
  json["mb_per_layer"] = 2;
  json["mamba_d_state"] = c.mamba_d_state;
  json["mamba_d_conv"] = c.mamba_d_conv;
  json["mamba_expand"] = c.mamba_expand;
  json["mamba_dt_rank"] = c.mamba_dt_rank;
  json["mamba_conv_bias"] = c.mamba_conv_bias;
  json["mamba_proj_bias"] = c.mamba_proj_bias;
}

}  // namespace diffattn::models
