// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/io/error.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/ops.h"
#include "io/safetensors/sharded.h"
#include "models/uninitialized.h"

namespace diffattn::models {

/// Throws io::Error if config.json describes a model that is far larger than the folder's weights,
/// before the model allocates memory.
void check_sizes(const std::string& folder, const io::TensorSource& weights,
                 const nn::ModelConfig& config);
/// Copies the weights of an open folder, see load_weights().
void copy_weights(const io::TensorSource& weights, const torch::nn::Module& model,
                  const nn::ModelConfig& config);

/// Loads a model in evaluation mode. Throws io::Error that names config.json if its sizes
/// contradict each other.
template <class Model>
Model loaded_model(const std::string& folder, const nn::ModelConfig& config,
                   torch::ScalarType dtype) {
  const auto weights = io::ShardedReader::open(folder);
  check_sizes(folder, weights, config);
  const auto make = [&] {
    try {
      const Uninitialized no_values(dtype);
      return Model(config);
    } catch (const Error& error) {
      const std::string message = error.what(), ours = "diffattn: ";
      throw io::Error(folder + "/config.json",
                      message.starts_with(ours) ? message.substr(ours.size()) : message);
    }
  };
  Model model = make();
  copy_weights(weights, *model, config);
  model->eval();
  return model;
}

}  // namespace diffattn::models
