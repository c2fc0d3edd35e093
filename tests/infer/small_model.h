// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/nn/decoder.h"

namespace diffattn::infer {

using Rows = std::vector<std::vector<int64_t>>;

inline nn::ModelConfig small_config(const std::string& attention) {
  nn::ModelConfig config;
  config.attention = attention;
  config.vocab_size = 97;
  config.hidden_size = 128;
  config.intermediate_size = 160;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 16;
  config.initializer_range = 0.15;
  return config;
}

inline nn::CausalLM make_model(const nn::ModelConfig& config, torch::Device device,
                               torch::ScalarType type) {
  torch::manual_seed(5);
  nn::CausalLM model(config);
  model->to(device, type);
  model->eval();
  return model;
}

/// Prompts of 1, 40, 7, ... tokens.
inline Rows make_prompts(size_t count) {
  Rows prompts;
  for (size_t row = 0; row < count; ++row) {
    std::vector<int64_t> prompt(row == 0 ? 1 : 1 + (row * 39) % 67);
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<int64_t>((i * 31 + row * 17) % 97);
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

/// A device and a type for which steps have kernels.
struct Place {
  torch::Device device = torch::kCPU;
  torch::ScalarType type = torch::kFloat32;
};

/// The places of this machine.
inline std::vector<Place> places() {
  std::vector<Place> all{{torch::kCPU, torch::kFloat32}, {torch::kCPU, torch::kBFloat16}};
  if (torch::cuda::is_available()) {
    for (const auto type : {torch::kBFloat16, torch::kFloat16, torch::kFloat32}) {
      all.push_back({torch::kCUDA, type});
    }
  }
  return all;
}

inline std::string name_of(const Place& place) {
  return c10::str(place.device.type(), " ", place.type);
}

}  // namespace diffattn::infer
