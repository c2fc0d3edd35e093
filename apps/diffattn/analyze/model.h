// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/nn/model_config.h"

namespace diffattn::app {

/// What a model reads.
struct AnalyzedText {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> written = {};  // what the decoder of an encoder-decoder reads
  std::string given_as = "text";      // where it comes from, for errors
};

/// One attention of a model on a text.
struct ModelPart {
  std::string name;  // "" when the model has one: "encoder", "decoder", "cross-attention", "path 1"
  analysis::LayerCalls calls;
  bool written_rows = false;     // queries are tokens of `written`
  bool written_columns = false;  // keys are
  int64_t keys_per_token = 1;    // paths that introspective attention looks at, token by token
  std::vector<std::optional<double>> lambda_init;  // per layer
};

/// A model folder of any kind, to be looked into.
class AnalyzedModel {
 public:
  /// Throws io::Error for what is not a model folder.
  AnalyzedModel(const std::string& folder, const std::string& device, const std::string& dtype);

  /// Reads a text, without gradients. Throws io::Error for a text that is empty, longer than the
  /// model, or has ids that are not in its vocabulary.
  std::vector<ModelPart> read(const AnalyzedText& text);

  bool writes() const { return static_cast<bool>(encoder_decoder_); }
  /// What an encoder-decoder itself writes about a text, its first token included.
  std::vector<int64_t> write(const AnalyzedText& text, int64_t max_tokens);
  /// The token that a written text begins with.
  int64_t first_written() const;

  const std::string folder;
  const nn::ModelConfig config;
  std::optional<io::Tokenizer> tokenizer;
  std::string name;         // of the run, or of the folder
  std::string description;  // attention, sizes

 private:
  using Traces = std::vector<nn::AttentionTrace>;
  torch::Tensor tensor_of(const std::vector<int64_t>& ids, const std::string& what) const;
  void append_parts(std::vector<ModelPart>& parts, const std::string& name, const Traces& traces,
                    const std::vector<std::shared_ptr<nn::AttentionLayer>>& layers) const;
  std::shared_ptr<torch::nn::Module> load(const std::string& dtype);

  torch::Device device_;
  nn::Stack stack_{nullptr};  // of everything but an encoder-decoder
  nn::EncoderDecoder encoder_decoder_{nullptr};
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace diffattn::app
