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
/// not padding, and a head of two layers: linear, ReLU, dropout, linear.
///
/// Parameters: model.* as those of the decoder or encoder, classifier.dense.{weight,bias},
/// classifier.out_proj.{weight,bias}. Classes and pooling are in the config.
class ClassifierImpl : public torch::nn::Module {
 public:
  /// Parameters are drawn as CausalLM's. Throws c10::Error without labels or for another pooling.
  explicit ClassifierImpl(const nn::ModelConfig& config);

  /// ids [B, N], padded on the right up to mask.key_lengths [B].
  ClassifierOutput forward(const nn::ModelInput& input);

  const nn::ModelConfig config;
  nn::Stack model{nullptr};
  torch::nn::Linear dense{nullptr}, out_proj{nullptr};

 private:
  torch::Tensor pool(const torch::Tensor& hidden, const torch::Tensor& lengths) const;
};
TORCH_MODULE(Classifier);

/// A folder that `TaskModel::save` wrote; on the CPU. Throws io::Error for folders of other models.
Classifier load_classifier(const std::string& folder, torch::ScalarType dtype = torch::kFloat32);

}  // namespace diffattn::train
