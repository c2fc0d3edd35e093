// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "diffattn/nn/decoder.h"
#include "diffattn/nn/encoder.h"
#include "diffattn/nn/encoder_decoder.h"

/// Models as Hugging Face folders: config.json and model.safetensors (or shards with an index).
/// Decoders with the attentions "diffllama" and "transformer" are what transformers writes and
/// reads; other attentions of the family have `model_type` "diffattn", encoders "diff_encoder",
/// encoder-decoders "diff_encoder_decoder", and these three the key `attention`.
namespace diffattn::models {

/// Reads `<folder>/config.json`. Every key is checked for type and range; values that would change
/// the numbers in a way this library does not compute (another activation, attention dropout) are
/// refused, unknown keys are named in a warning. Throws io::Error.
nn::ModelConfig read_model_config(const std::string& folder);

/// The text of a config.json that gives the config back; `dtype` names the type of the weights.
std::string model_config_text(const nn::ModelConfig& config, torch::ScalarType dtype);

/// The model with its weights, on the CPU, in `dtype` whatever the file has.
nn::CausalLM load_causal_lm(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);

nn::Encoder load_encoder(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);
nn::EncoderDecoder load_encoder_decoder(const std::string& folder,
                                        torch::ScalarType dtype = torch::kFloat32);

/// Copies a folder's weights into any module with the same parameters. Throws io::Error when one is
/// missing, has another shape or type, or is too many, nothing having been copied then; or when one
/// is not finite, which is seen after copying.
void load_weights(const std::string& folder, const torch::nn::Module& model,
                  const nn::ModelConfig& config);

inline constexpr std::uint64_t kDefaultShardBytes = std::uint64_t{50} << 30;  // as transformers

/// Writes config.json and weights into an existing folder, each file complete or not at all.
void save_model(const std::string& folder, const torch::nn::Module& model,
                const nn::ModelConfig& config, std::uint64_t max_shard_bytes = kDefaultShardBytes);
void save_causal_lm(const std::string& folder, const nn::CausalLMImpl& model,
                    std::uint64_t max_shard_bytes = kDefaultShardBytes);

/// Every parameter once under its name.
std::vector<std::pair<std::string, torch::Tensor>> named_weights(const torch::nn::Module& model);

}  // namespace diffattn::models
