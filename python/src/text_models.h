// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/train/classifier.h"
#include "python/src/folder_text.h"

namespace diffattn::python {

/// A classifier in memory: torch.classes.diffattn.Classifier.
class Classifier : public torch::CustomClassHolder {
 public:
  Classifier(const std::string& folder, const std::string& dtype, const std::string& device);

  std::string config() const;
  const torch::nn::Module& module() const { return *model_; }

  /// Returns the logits [B, classes] of ids [B, N]; row b has lengths[b] tokens.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& lengths);

  const FolderText text;

 private:
  train::Classifier model_{nullptr};
};

/// An encoder and a decoder in memory: torch.classes.diffattn.TextToText.
class TextToText : public torch::CustomClassHolder {
 public:
  TextToText(const std::string& folder, const std::string& dtype, const std::string& device);

  std::string config() const;
  const torch::nn::Module& module() const { return *model_; }

  /// Returns the logits [B, M, V] of targets [B, M] after sources [B, N] of lengths [B].
  torch::Tensor forward(const torch::Tensor& sources, const torch::Tensor& lengths,
                        const torch::Tensor& targets);
  /// Writes a text for each source. `options` is a JSON object with the names of
  /// train::WritingOptions.
  std::vector<Ids> generate(const std::vector<Ids>& sources, const std::string& options);

  const FolderText text;

 private:
  nn::EncoderDecoder model_{nullptr};
};

}  // namespace diffattn::python
