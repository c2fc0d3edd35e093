// SPDX-License-Identifier: Apache-2.0
#include "diffattn/models/model_config.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "models/config_reader.h"
#include "models/published_config.h"

namespace diffattn::models {
namespace {

using io::JsonValue;
using nn::ModelConfig;
using Reader = ConfigReader;

constexpr char kEncoderType[] = "diff_encoder";
constexpr char kEncoderDecoderType[] = "diff_encoder_decoder";

/// Keys that change no result, and keys that functions outside of Reader read.
constexpr std::array<std::string_view, 24> kOtherKeys = {"architectures",
                                                         "attention_dropout",
                                                         "attn_implementation",
                                                         "dtype",
                                                         "hidden_act",
                                                         "keys_to_ignore_at_inference",
                                                         "layer_types",
                                                         "max_window_layers",
                                                         "model_type",
                                                         "pretraining_tp",
                                                         "rope_parameters",
                                                         "rope_scaling",
                                                         "rope_theta",
                                                         "torch_dtype",
                                                         "transformers_version",
                                                         "use_cache",
                                                         "name_or_path",
                                                         "_name_or_path",
                                                         "output_attentions",
                                                         "output_hidden_states",
                                                         "return_dict",
                                                         "label_smoothing",
                                                         "id2label",
                                                         "label2id"};

void read_type(const JsonValue& root, ModelConfig& config) {
  const JsonValue type = root.at("model_type");
  const std::string name = type.to_string();
  if (name == "llama") {
    config.attention = "transformer";
    return;
  }
  if (name == "diffllama" || set_published_family(root, config)) return;
  if (name == kEncoderType) {
    config.kind = nn::ModelKind::kEncoder;
  } else if (name == kEncoderDecoderType) {
    config.kind = nn::ModelKind::kEncoderDecoder;
  } else if (name != "diffattn") {
    type.fail(
        "\"diffllama\", \"llama\", \"motif\", \"phi4flash\", \"diffattn\", \"diff_encoder\" or "
        "\"diff_encoder_decoder\"");
  }
  config.attention = root.at("attention").to_string(64);
}

/// Reads `id2label`: {"0": name, "1": name, ...}, without gaps.
void read_labels(const JsonValue& root, ModelConfig& config) {
  const auto names = root.find("id2label");
  if (!names) return;
  const size_t count = names->keys().size();
  if (count > static_cast<size_t>(kMaxCount)) names->fail("at most 65536 labels");
  for (size_t id = 0; id < count; ++id) {
    config.labels.push_back(names->at(std::to_string(id)).to_string(4096));
  }
}

void read_classifier(Reader& reader, ModelConfig& config) {
  read_labels(reader.root, config);
  if (const auto pooling = reader.find("classifier_pooling")) {
    config.classifier_pooling = pooling->to_string(16);
    constexpr std::array<std::string_view, 3> kKnown{"cls", "last", "mean"};
    if (std::ranges::find(kKnown, config.classifier_pooling) == kKnown.end()) {
      pooling->fail("\"cls\", \"last\" or \"mean\"");
    }
  }
  reader.read("classifier_dropout", config.classifier_dropout, 0.0, 0.999);
  reader.read("classifier_hidden_size", config.classifier_hidden_size, 0, kMaxWidth);
}

void refuse_unsupported(const JsonValue& root, const ModelConfig& config) {
  const std::string expected = config.family == nn::ModelFamily::kMotif ? "poly_norm" : "silu";
  if (const auto act = root.find("hidden_act"); act && act->to_string() != expected) {
    act->fail(io::in_quotes(expected));
  }
  if (const auto dropout = root.find("attention_dropout"); dropout && dropout->to_double() != 0.0) {
    dropout->fail("0 (dropout on a difference of two maps has no defined meaning)");
  }
}

/// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (older versions).
void read_rotary(const JsonValue& root, ModelConfig& config) {
  nn::RotaryOptions& rotary = config.rope_parameters;
  if (const auto theta = root.find("rope_theta")) rotary.rope_theta(theta->to_double(1.0, 1e12));
  auto scaling = root.find("rope_parameters");
  if (!scaling) scaling = root.find("rope_scaling");
  if (!scaling) return;
  if (const auto theta = scaling->find("rope_theta"))
    rotary.rope_theta(theta->to_double(1.0, 1e12));
  auto type = scaling->find("rope_type");
  if (!type) type = scaling->find("type");
  if (!type) return;
  const std::string& name = type->to_string(32);
  if (name == "default") return;
  if (name != "linear" && name != "dynamic" && name != "llama3") {
    type->fail("\"default\", \"linear\", \"dynamic\" or \"llama3\"");
  }
  rotary.rope_type(nn::rotary_scaling(name)).factor(scaling->at("factor").to_double(1.0, 1e6));
  rotary.original_max_position_embeddings(config.max_position_embeddings);
  if (name == "llama3") {
    rotary.low_freq_factor(scaling->at("low_freq_factor").to_double(1e-6, 1e6));
    rotary.high_freq_factor(scaling->at("high_freq_factor").to_double(1e-6, 1e6));
  }
  if (const auto length = scaling->find("original_max_position_embeddings")) {
    rotary.original_max_position_embeddings(length->to_int(1, int64_t{1} << 40));
  }
}

void warn_of_unknown(const JsonValue& root, const std::vector<std::string>& known) {
  for (const std::string& key : root.keys()) {
    if (std::ranges::find(kOtherKeys, key) == kOtherKeys.end() &&
        std::ranges::find(known, key) == known.end()) {
      TORCH_WARN(root.file(), ": key ", io::in_quotes(key), " is not known here and has no effect");
    }
  }
}

nlohmann::json rotary_json(const nn::RotaryOptions& rotary) {
  nlohmann::json json{{"rope_theta", rotary.rope_theta()}, {"rope_type", "default"}};
  using nn::RotaryScaling;
  if (rotary.rope_type() == RotaryScaling::kNone) return json;
  json["factor"] = rotary.factor();
  json["original_max_position_embeddings"] = rotary.original_max_position_embeddings();
  json["rope_type"] = rotary.rope_type() == RotaryScaling::kLinear    ? "linear"
                      : rotary.rope_type() == RotaryScaling::kDynamic ? "dynamic"
                                                                      : "llama3";
  if (rotary.rope_type() == RotaryScaling::kLlama3) {
    json["low_freq_factor"] = rotary.low_freq_factor();
    json["high_freq_factor"] = rotary.high_freq_factor();
  }
  return json;
}

std::string dtype_text(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kBFloat16: return "bfloat16";
    case torch::kFloat16: return "float16";
    case torch::kFloat64: return "float64";
    default: return "float32";
  }
}

/// Adds the model type and the keys that depend on it. Models of transformers get its names.
void add_type(nlohmann::json& json, const ModelConfig& c) {
  if (c.mlp_bias || c.attention == "transformer") json["mlp_bias"] = c.mlp_bias;
  if (c.attention != "transformer") json["lambda_std_dev"] = c.lambda_std_dev;
  const bool decoder = c.kind == nn::ModelKind::kDecoder;
  if (decoder && c.attention == "transformer") {
    json["model_type"] = "llama";
    json["architectures"] = {"LlamaForCausalLM"};
  } else if (decoder && c.attention == "diffllama" && !c.ablated()) {
    json["model_type"] = "diffllama";
    json["architectures"] = {"DiffLlamaForCausalLM"};
  } else {
    json["model_type"] = decoder                             ? "diffattn"
                         : c.kind == nn::ModelKind::kEncoder ? kEncoderType
                                                             : kEncoderDecoderType;
    json["attention"] = c.attention;
    if (!c.head_norm) json["head_norm"] = false;
    if (c.lambda_init) json["lambda_init"] = *c.lambda_init;
  }
  if (c.kind == nn::ModelKind::kEncoderDecoder) json["num_encoder_layers"] = c.num_encoder_layers;
}

/// Throws io::Error with a hint if `folder` is a run folder: its model is in a subfolder, which
/// does not exist before the first validation.
void refuse_run_folder(const std::string& folder, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path given = folder, model = given / "model";
  std::error_code ignored;
  if (fs::exists(path, ignored)) return;
  if (fs::exists(model / "config.json", ignored)) {
    throw io::Error(path,
                    "expected a model's config.json, got none in this run folder; the model is "
                    "in " +
                        model.string());
  }
  const fs::path run = given.filename() == "model" ? given.parent_path() : given;
  const fs::path latest = run / "checkpoints" / "latest";
  if (!fs::exists(latest, ignored)) return;
  std::string name = io::read_text(latest, 256);
  if (name.ends_with('\n')) name.pop_back();
  throw io::Error(path,
                  "expected a model's config.json, got none before the run's first validation; its "
                  "newest checkpoint is " +
                      (latest.parent_path() / name).string());
}

void add_classifier(nlohmann::json& json, const ModelConfig& c) {
  if (c.labels.empty()) return;
  for (size_t id = 0; id < c.labels.size(); ++id) {
    json["id2label"][std::to_string(id)] = c.labels[id];
    json["label2id"][c.labels[id]] = id;
  }
  json["classifier_pooling"] = c.classifier_pooling;
  json["classifier_dropout"] = c.classifier_dropout;
  json["classifier_hidden_size"] = c.classifier_hidden_size;
}

}  // namespace

ModelConfig read_model_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  refuse_run_folder(folder, path);
  const nlohmann::json json = io::read_json(path);
  const JsonValue root(json, path);
  ModelConfig c;
  read_type(root, c);
  refuse_unsupported(root, c);
  Reader reader{root, {"attention"}};
  if (c.family != nn::ModelFamily::kLlama) set_published_defaults(reader, c);
  reader.read("vocab_size", c.vocab_size, 1, 1 << 24);
  reader.read("hidden_size", c.hidden_size, 1, kMaxWidth);
  reader.read("intermediate_size", c.intermediate_size, 1, kMaxWidth * 4);
  reader.read("num_hidden_layers", c.num_hidden_layers, 1, kMaxCount);
  reader.read("num_attention_heads", c.num_attention_heads, 1, kMaxCount);
  c.num_key_value_heads = c.num_attention_heads;
  reader.read("num_key_value_heads", c.num_key_value_heads, 1, kMaxCount);
  c.head_dim = std::max<int64_t>(1, c.hidden_size / c.num_attention_heads);
  reader.read("head_dim", c.head_dim, 1, kMaxCount);
  reader.read("max_position_embeddings", c.max_position_embeddings, 1, int64_t{1} << 40);
  reader.read("rms_norm_eps", c.rms_norm_eps, 0.0, 1.0);
  reader.read("initializer_range", c.initializer_range, 0.0, 100.0);
  reader.read("lambda_std_dev", c.lambda_std_dev, 0.0, 100.0);
  reader.read("tie_word_embeddings", c.tie_word_embeddings);
  reader.read("attention_bias", c.attention_bias);
  reader.read("mlp_bias", c.mlp_bias);
  reader.read("pad_token_id", c.pad_token_id, c.vocab_size);
  reader.read("bos_token_id", c.bos_token_id, c.vocab_size);
  reader.read("eos_token_id", c.eos_token_id, c.vocab_size);
  reader.read("num_encoder_layers", c.num_encoder_layers, 0, kMaxCount);
  reader.read("decoder_start_token_id", c.decoder_start_token_id, c.vocab_size);
  reader.read("head_norm", c.head_norm);
  if (const auto value = reader.find("lambda_init")) c.lambda_init = value->to_double(-10.0, 10.0);
  read_classifier(reader, c);
  read_rotary(root, c);
  if (c.family != nn::ModelFamily::kLlama) read_published_keys(reader, c);
  warn_of_unknown(root, reader.known);
  return c;
}

std::string model_config_text(const ModelConfig& c, torch::ScalarType dtype) {
  nlohmann::json json{
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position_embeddings},
      {"rms_norm_eps", c.rms_norm_eps},
      {"initializer_range", c.initializer_range},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"attention_bias", c.attention_bias},
      {"attention_dropout", 0.0},
      {"hidden_act", "silu"},
      {"use_cache", true},
      {"dtype", dtype_text(dtype)},
      {"rope_parameters", rotary_json(c.rope_parameters)},
  };
  if (c.family == nn::ModelFamily::kLlama) {
    add_type(json, c);
  } else {
    write_published_keys(json, c);
  }
  add_classifier(json, c);
  const auto token = [&](const char* key, const std::optional<int64_t>& id) {
    json[key] = id ? nlohmann::json(*id) : nlohmann::json(nullptr);
  };
  token("pad_token_id", c.pad_token_id);
  token("bos_token_id", c.bos_token_id);
  token("eos_token_id", c.eos_token_id);
  if (c.kind == nn::ModelKind::kEncoderDecoder) {
    token("decoder_start_token_id", c.decoder_start_token_id);
  }
  return json.dump(2) + "\n";
}

}  // namespace diffattn::models
