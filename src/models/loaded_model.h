// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/io/error.h"
#include "io/safetensors/sharded.h"
#include "diffattn/ops.h"
#include "diffattn/models/model_folder.h"

namespace diffattn::models {

/// Throws io::Error where config.json describes a model far larger than the folder's weights,
/// before memory is taken for it.
void check_sizes(const std::string& folder, const io::TensorSource& weights,
                 const nn::ModelConfig& config);
/// `load_weights` of an open folder.
void copy_weights(const io::TensorSource& weights, const torch::nn::Module& model,
                  const nn::ModelConfig& config);

/// A model of `config` with the folder's weights. What no model can be is said of config.json.
template <class Model>
Model loaded_model(const std::string& folder, const nn::ModelConfig& config,
                   torch::ScalarType dtype) {
  const auto weights = io::ShardedReader::open(folder);
  check_sizes(folder, weights, config);
  const auto make = [&] {
    try {
      return Model(config);
    } catch (const Error& error) {
      const std::string message = error.what(), ours = "diffattn: ";
      throw io::Error(folder + "/config.json",
                      message.starts_with(ours) ? message.substr(ours.size()) : message);
    }
  };
  Model model = make();
  model->to(dtype);
  copy_weights(weights, *model, config);
  model->eval();
  return model;
}

}  // namespace diffattn::models
