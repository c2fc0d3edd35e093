// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/model_folder.h"

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/sharded.h"
#include "diffattn/train/tensor_file.h"

namespace diffattn::train {

NamedTensors named_weights(const torch::nn::Module& model) {
  NamedTensors weights;
  for (const auto& item : model.named_parameters()) weights.emplace_back(item.key(), item.value());
  return weights;
}

void load_weights(const std::string& folder, const torch::nn::Module& model,
                  const nn::ModelConfig& config) {
  const auto source = io::ShardedReader::open(folder);
  // Older files carry the rotary frequencies, and tied models sometimes their head a second time.
  const auto ignored = [&](const std::string& name) {
    return name.ends_with("rotary_emb.inv_freq") ||
           (config.tie_word_embeddings && name == "lm_head.weight");
  };
  read_tensors_into(source, named_weights(model), ignored);
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
  Model model(config);
  model->to(dtype);
  load_weights(folder, *model, config);
  model->eval();
  return model;
}

}  // namespace

nn::CausalLM load_causal_lm(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::CausalLM>(folder, dtype, nn::ModelKind::kDecoder);
}

nn::Encoder load_encoder(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::Encoder>(folder, dtype, nn::ModelKind::kEncoder);
}

nn::EncoderDecoder load_encoder_decoder(const std::string& folder, torch::ScalarType dtype) {
  return load<nn::EncoderDecoder>(folder, dtype, nn::ModelKind::kEncoderDecoder);
}

void save_model(const std::string& folder, const torch::nn::Module& model,
                const nn::ModelConfig& config, std::uint64_t max_shard_bytes) {
  const NamedTensors weights = named_weights(model);
  write_tensor_folder(folder, weights, max_shard_bytes, {{"format", "pt"}});
  io::write_text(folder + "/config.json",
                 model_config_text(config, weights.front().second.scalar_type()));
}

void save_causal_lm(const std::string& folder, const nn::CausalLMImpl& model,
                    std::uint64_t max_shard_bytes) {
  save_model(folder, model, model.config, max_shard_bytes);
}

}  // namespace diffattn::train
