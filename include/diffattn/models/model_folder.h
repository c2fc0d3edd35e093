// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/models/model_config.h"
#include "diffattn/nn/decoder.h"
#include "diffattn/nn/encoder.h"
#include "diffattn/nn/encoder_decoder.h"

/// Models in Hugging Face folders: config.json and model.safetensors (or shards with an index).
/// The transformers library reads and writes the same folders for decoders with the attentions
/// "diffllama" and "transformer". For all other models, `model_type` is "diffattn" (decoders),
/// "diff_encoder" or "diff_encoder_decoder", and the key `attention` names the preset.
namespace diffattn::models {

/// Loads a model on the CPU, in evaluation mode, and converts its weights to `dtype`. Throws
/// io::Error.
nn::CausalLM load_causal_lm(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);
/// Does the same with another configuration than the folder's.
nn::CausalLM load_causal_lm(const std::string& folder, const nn::ModelConfig& config,
                            torch::ScalarType dtype = torch::kFloat32);
nn::Encoder load_encoder(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);
nn::EncoderDecoder load_encoder_decoder(const std::string& folder,
                                        torch::ScalarType dtype = torch::kFloat32);

/// Copies the weights of a folder into a module with the same parameters. Throws io::Error before
/// it copies anything if a tensor is missing, superfluous, or has another shape or type; throws
/// after copying if a weight is not finite.
void load_weights(const std::string& folder, const torch::nn::Module& model,
                  const nn::ModelConfig& config);

inline constexpr uint64_t kDefaultShardBytes = uint64_t{50} << 30;  // as in transformers

/// Writes config.json and the weights into a folder, and creates it if it is missing. Files appear
/// only when they are complete. Throws io::Error.
void save_model(const std::string& folder, const torch::nn::Module& model,
                const nn::ModelConfig& config, uint64_t max_shard_bytes = kDefaultShardBytes);
void save_causal_lm(const std::string& folder, const nn::CausalLMImpl& model,
                    uint64_t max_shard_bytes = kDefaultShardBytes);
/// Takes the model that load_causal_lm() returns.
inline void save_causal_lm(const std::string& folder, const nn::CausalLM& model,
                           uint64_t max_shard_bytes = kDefaultShardBytes) {
  save_causal_lm(folder, *model, max_shard_bytes);
}

/// Returns every parameter with its name, each tied parameter once.
std::vector<std::pair<std::string, torch::Tensor>> named_weights(const torch::nn::Module& model);

}  // namespace diffattn::models
