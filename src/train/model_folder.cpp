// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/model_folder.h"

#include "diffattn/io/file.h"
#include "diffattn/io/sharded.h"
#include "diffattn/train/tensor_file.h"

namespace diffattn::train {

NamedTensors named_weights(const torch::nn::Module& model) {
  NamedTensors weights;
  for (const auto& item : model.named_parameters()) weights.emplace_back(item.key(), item.value());
  return weights;
}

nn::CausalLM load_causal_lm(const std::string& folder, torch::ScalarType dtype) {
  const nn::ModelConfig config = read_model_config(folder);
  const auto source = io::ShardedReader::open(folder);
  nn::CausalLM model(config);
  model->to(dtype);
  // Older files carry the rotary frequencies, and tied models sometimes their head a second time.
  const auto ignored = [&](const std::string& name) {
    return name.ends_with("rotary_emb.inv_freq") ||
           (config.tie_word_embeddings && name == "lm_head.weight");
  };
  read_tensors_into(source, named_weights(*model), ignored);
  model->eval();
  return model;
}

void save_causal_lm(const std::string& folder, const nn::CausalLMImpl& model,
                    std::uint64_t max_shard_bytes) {
  const NamedTensors weights = named_weights(model);
  write_tensor_folder(folder, weights, max_shard_bytes, {{"format", "pt"}});
  io::write_text(folder + "/config.json",
                 model_config_text(model.config, weights.front().second.scalar_type()));
}

}  // namespace diffattn::train
