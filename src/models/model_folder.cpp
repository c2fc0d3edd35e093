// SPDX-License-Identifier: Apache-2.0
#include "diffattn/models/model_folder.h"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/safetensors/sharded.h"
#include "models/loaded_model.h"
#include "models/tensor_file.h"

namespace diffattn::models {

NamedTensors named_weights(const torch::nn::Module& model) {
  NamedTensors weights;
  for (const auto& item : model.named_parameters()) weights.emplace_back(item.key(), item.value());
  return weights;
}

void load_weights(const std::string& folder, const torch::nn::Module& model,
                  const nn::ModelConfig& config) {
  copy_weights(io::ShardedReader::open(folder), model, config);
}

namespace {

/// Throws io::Error if a weight is not finite, because the model would still produce labels and
/// text.
void check_finite(const io::TensorSource& weights, const std::string& name,
                  const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const auto [low, high] = at::aminmax(tensor.detach());
  for (const double value : {low.item<double>(), high.item<double>()}) {
    if (std::isfinite(value)) continue;
    const std::string got = std::isnan(value) ? "NaN" : fmt::format("{}", value);
    throw io::Error(weights.name(), fmt::format("tensor {}: expected finite numbers, got {}",
                                                io::in_quotes(name), got));
  }
}

}  // namespace

void copy_weights(const io::TensorSource& weights, const torch::nn::Module& model,
                  const nn::ModelConfig& config) {
  // Old files contain the rotary frequencies, and some tied models contain their head twice.
  const auto ignored = [&](const std::string& name) {
    return name.ends_with("rotary_emb.inv_freq") ||
           (config.tie_word_embeddings && name == "lm_head.weight");
  };
  const NamedTensors tensors = named_weights(model);
  read_tensors_into(weights, tensors, ignored);
  for (const auto& [name, tensor] : tensors) check_finite(weights, name, tensor);
}

void check_sizes(const std::string& folder, const io::TensorSource& weights,
                 const nn::ModelConfig& c) {
  constexpr double kSmall =
      1 << 24;  // below this, the error about the first wrong tensor is better
  const std::vector<std::string> names = weights.names();
  const bool two_stacks = c.kind == nn::ModelKind::kEncoderDecoder;
  const int64_t encoder_layers =
      c.num_encoder_layers > 0 ? c.num_encoder_layers : c.num_hidden_layers;
  const int64_t layers = c.num_hidden_layers + (two_stacks ? encoder_layers : 0);
  // Every layer has tensors, and even an empty layer costs time and memory.
  if (layers > static_cast<int64_t>(names.size())) {
    throw io::Error(folder + "/config.json",
                    fmt::format("expected at most as many layers as the weight files hold tensors, "
                                "{}, got {}",
                                names.size(), layers));
  }
  double held = 0.0;
  for (const std::string& name : names) {
    double elements = 1.0;
    for (const int64_t size : weights.at(name).shape) elements *= static_cast<double>(size);
    held += elements;
  }
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ...); };
  // A quarter of the projections is a lower bound for attentions that share or halve their heads.
  const double layer = product(3, c.hidden_size, c.intermediate_size) +
                       product(c.num_attention_heads, c.head_dim, c.hidden_size) / 4;
  const int64_t width = c.classifier_hidden_size > 0 ? c.classifier_hidden_size : c.hidden_size / 2;
  const double classifier =
      c.labels.empty() ? 0.0 : product(width, c.hidden_size) + product(width, c.labels.size());
  const double asked = product(c.vocab_size, c.hidden_size) + product(layers, layer) + classifier;
  if (asked <= held + kSmall) return;
  throw io::Error(folder + "/config.json",
                  fmt::format("expected sizes of the model whose weights are {:.0f} numbers, got "
                              "sizes of a model with at least {:.4g}",
                              held, asked));
}

namespace {

const char* kind_text(nn::ModelKind kind) {
  switch (kind) {
    case nn::ModelKind::kDecoder: return "a causal language model";
    case nn::ModelKind::kEncoder: return "an encoder";
    case nn::ModelKind::kEncoderDecoder: break;
  }
  return "an encoder-decoder";
}

template <class Model>
Model load(const std::string& folder, torch::ScalarType dtype, nn::ModelKind kind) {
  const nn::ModelConfig config = read_model_config(folder);
  if (config.kind != kind) {
    throw io::Error(
        folder + "/config.json",
        std::string("model_type: expected ") + kind_text(kind) + ", got " + kind_text(config.kind));
  }
  return loaded_model<Model>(folder, config, dtype);
}

}  // namespace

nn::CausalLM load_causal_lm(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::CausalLM>(folder, dtype, nn::ModelKind::kDecoder);
}

nn::CausalLM load_causal_lm(const std::string& folder, const nn::ModelConfig& config,
                            torch::ScalarType dtype) {
  return loaded_model<nn::CausalLM>(folder, config, dtype);
}

nn::Encoder load_encoder(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::Encoder>(folder, dtype, nn::ModelKind::kEncoder);
}

nn::EncoderDecoder load_encoder_decoder(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::EncoderDecoder>(folder, dtype, nn::ModelKind::kEncoderDecoder);
}

void save_model(const std::string& folder, const torch::nn::Module& model,
                const nn::ModelConfig& config, uint64_t max_shard_bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::Error(folder, "could not create the folder: " + error.message());
  const NamedTensors weights = named_weights(model);
  write_tensor_folder(folder, weights, max_shard_bytes, {{"format", "pt"}});
  io::write_text(folder + "/config.json",
                 model_config_text(config, weights.front().second.scalar_type()));
}

void save_causal_lm(const std::string& folder, const nn::CausalLMImpl& model,
                    uint64_t max_shard_bytes) {
  save_model(folder, model, model.config, max_shard_bytes);
}

}  // namespace diffattn::models
