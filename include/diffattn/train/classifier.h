// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::train {

struct ClassifierOutput {
  torch::Tensor logits;  // [B, classes]
  torch::Tensor hidden;  // [B, N, E]
};

/// A causal decoder or a bidirectional encoder (`config.kind`), pooling over the tokens that are
/// not padding, and a head: linear, ReLU, dropout, linear.
///
/// Parameters: model.* as in the decoder or encoder, classifier.dense.{weight,bias} and
/// classifier.out_proj.{weight,bias}. The config holds the classes and the pooling.
class ClassifierImpl : public torch::nn::Module {
 public:
  /// Draws random parameters as CausalLM does. Throws diffattn::Error for fewer than two labels, an
  /// unknown pooling or an encoder-decoder.
  explicit ClassifierImpl(const nn::ModelConfig& config);

  /// ids [B, N]; row b has mask.key_lengths[b] tokens and then padding. Without key_lengths, no
  /// token is padding.
  ClassifierOutput forward(const nn::ModelInput& input);

  const nn::ModelConfig config;
  nn::Stack model{nullptr};
  torch::nn::Linear dense{nullptr}, out_proj{nullptr};

 private:
  torch::Tensor pool(const torch::Tensor& hidden, const torch::Tensor& lengths) const;
};
TORCH_MODULE(Classifier);

/// Loads a folder that TaskModel::save wrote, on the CPU and in evaluation mode. Throws io::Error
/// if the folder holds another kind of model.
Classifier load_classifier(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);

}  // namespace diffattn::train
