// SPDX-License-Identifier: Apache-2.0
#include "convert/model.h"

#include <algorithm>
#include <cmath>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::convert {
namespace {

using io::JsonValue;

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxCount = 1 << 16;

std::string lowercase(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  });
  return text;
}

std::optional<Format> format_in(const JsonValue& root) {
  const auto type = root.find("model_type");
  if (!type) return std::nullopt;
  const std::string& name = type->to_string();
  if (name == "llama") return Format::kLlama;
  if (name == "diffllama") return Format::kDiffLlama;
  if (lowercase(name) == "motif") return Format::kMotif;  // as the loader reads it
  if (lowercase(name) == "phi4flash") return Format::kPhi4Flash;
  if (name != "diffattn") {
    type->fail("\"llama\", \"diffllama\", \"diffattn\", \"Motif\" or \"phi4flash\"");
  }
  const JsonValue attention = root.at("attention");
  if (attention.to_string() == "microsoft_v1") return Format::kMicrosoft;
  if (attention.to_string() == "microsoft_v2") return Format::kMicrosoftV2;
  attention.fail("\"microsoft_v1\" or \"microsoft_v2\"");
}

Format format_of(const JsonValue& root, std::optional<Format> from) {
  const auto found = format_in(root);
  if (!found && !from) {
    throw io::Error(root.file(),
                    "expected a key 'model_type', got none; name the format with --from");
  }
  if (found && from && *found != *from) {
    throw io::Error(root.file(), "expected a " + std::string(format_name(*from)) + " model, got " +
                                     std::string(format_name(*found)));
  }
  return found ? *found : *from;
}

/// Throws io::Error for settings that change the function of a layer.
void refuse_unsupported(const JsonValue& root, Format format) {
  if (const auto quantized = root.find("quantization_config")) {
    quantized->fail("no quantisation; convert the model before you quantise it");
  }
  if (const auto share = root.find("partial_rotary_factor"); share && share->to_double() != 1.0) {
    share->fail("1, a rotary embedding of the whole head");
  }
  if (const auto act = root.find("hidden_act");
      act && !copies_whole_models(format) && act->to_string() != "silu") {
    act->fail("\"silu\"");
  }
  const auto bias = root.find("use_bias");
  if (bias && format != Format::kMotif && bias->to_bool()) bias->fail("false");
}

void check_heads(const Model& m) {
  const auto fail = [&](const std::string& message) { throw io::Error(m.path, message); };
  const auto text = [](int64_t n) { return std::to_string(n); };
  const bool paired = m.format == Format::kDiffLlama || m.format == Format::kMicrosoft ||
                      m.format == Format::kPhi4Flash || m.format == Format::kMotif;
  if (paired && (m.kv_heads % 2 != 0 || (m.heads % 2 != 0 && m.noise_heads == 0))) {
    fail("expected even head counts, since heads come in pairs, got num_attention_heads " +
         text(m.heads) + " and num_key_value_heads " + text(m.kv_heads));
  }
  const int64_t shared = m.noise_heads > 0 ? m.noise_heads : m.kv_heads;
  if (m.heads % shared != 0) {
    fail("expected num_attention_heads to be a multiple of " + text(shared) + " " +
         (m.noise_heads > 0 ? "noise" : "kv") + " heads, got " + text(m.heads));
  }
  const int64_t signals = m.heads - m.noise_heads;
  if (m.noise_heads > 0 &&
      (signals == 0 || m.noise_heads % m.kv_pairs() != 0 || signals % m.kv_pairs() != 0)) {
    fail("expected as many noise heads and as many other heads for each pair of kv heads, got " +
         text(m.noise_heads) + " noise heads of " + text(m.heads) + " heads and " +
         text(m.kv_heads) + " kv heads");
  }
  if (m.head_dim % 2 != 0) {
    fail("expected an even head_dim, since rotary embeddings rotate pairs of features, got " +
         text(m.head_dim));
  }
}

}  // namespace

Model read_model(const std::string& folder, std::optional<Format> from) {
  Model m;
  m.path = io::Directory::open(folder).join("config.json");
  m.config = io::read_json(m.path);
  const JsonValue root(m.config, m.path);
  m.format = format_of(root, from);
  refuse_unsupported(root, m.format);
  const auto integer = [&](const char* key, int64_t otherwise, int64_t max) {
    const auto value = root.find(key);
    return value ? value->to_int(1, max) : otherwise;
  };
  const auto flag = [&](const char* key) {
    const auto value = root.find(key);
    return value && value->to_bool();
  };
  m.layers = root.at("num_hidden_layers").to_int(1, kMaxCount);
  m.hidden = root.at("hidden_size").to_int(1, kMaxWidth);
  m.intermediate = root.at("intermediate_size").to_int(1, 4 * kMaxWidth);
  m.vocabulary = root.at("vocab_size").to_int(1, 1 << 24);
  m.heads = root.at("num_attention_heads").to_int(1, kMaxCount);
  m.kv_heads = integer("num_key_value_heads", m.heads, kMaxCount);
  m.head_dim = integer("head_dim", std::max<int64_t>(1, m.hidden / m.heads), kMaxCount);
  if (m.format == Format::kMotif) m.noise_heads = integer("num_noise_heads", 0, kMaxCount);
  if (const auto eps = root.find("rms_norm_eps")) m.rms_norm_eps = eps->to_double(0.0, 1.0);
  if (const auto range = root.find("initializer_range")) {
    m.initializer_range = range->to_double(0.0, 100.0);
  }
  m.tied = flag("tie_word_embeddings");
  m.attention_bias = flag("attention_bias") || m.format == Format::kPhi4Flash;
  m.mlp_bias = flag("mlp_bias");
  check_heads(m);
  return m;
}

bool copies_whole_models(Format format) {
  return format == Format::kMotif || format == Format::kPhi4Flash;
}

std::string target_config(const Model& model, Format to, const nlohmann::json& changes) {
  nlohmann::json config = model.config;
  if (copies_whole_models(to)) {
    config.erase("auto_map");
    return config.dump(2) + "\n";
  }
  for (const char* key : {"auto_map", "architectures", "attention", "model_type", "_name_or_path",
                          "lambda_std_dev", "attn_rms_norm_eps", "num_noise_heads", "k_ratio"}) {
    config.erase(key);
  }
  config["head_dim"] = model.head_dim;
  config["num_key_value_heads"] = model.kv_heads;
  if (to == Format::kLlama) {
    config["model_type"] = "llama";
    config["architectures"] = {"LlamaForCausalLM"};
  } else {
    const bool hugging_face = to == Format::kDiffLlama;
    config["model_type"] = hugging_face ? "diffllama" : "diffattn";
    if (hugging_face) config["architectures"] = {"DiffLlamaForCausalLM"};
    config["lambda_std_dev"] = model.config.value("lambda_std_dev", nlohmann::json(0.1));
    config["attention_dropout"] = 0.0;  // not defined for a difference of maps
  }
  if (to == Format::kMicrosoft) config["attention"] = "microsoft_v1";
  if (to == Format::kMicrosoftV2) config["attention"] = "microsoft_v2";
  config.update(changes);
  return config.dump(2) + "\n";
}

double lambda_init(int64_t layer) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer));
}

std::string attention_prefix(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".self_attn.";
}

}  // namespace diffattn::convert
