// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/nn/model_config.h"

namespace diffattn::app {

/// The tokens that a model reads.
struct AnalyzedText {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> written = {};  // tokens of the decoder of an encoder-decoder
  std::string given_as = "text";      // option or file, for errors

  bool operator==(const AnalyzedText&) const = default;
};

/// One attention of a model on a text.
struct ModelPart {
  std::string
      name;  // "encoder", "decoder", "cross-attention", "path 1"; empty if there is one part
  analysis::LayerCalls calls;
  bool written_rows = false;     // queries are tokens of AnalyzedText::written
  bool written_columns = false;  // keys are tokens of AnalyzedText::written
  int64_t path = 0;              // of introspective attention: it sees path + 1 keys of every token
  std::vector<std::optional<double>> lambda_init;  // per layer
};

/// A model of any kind, loaded from a folder, whose attention can be traced.
class AnalyzedModel {
 public:
  /// Throws io::Error if the folder is no model folder.
  AnalyzedModel(const std::string& folder, const std::string& device, const std::string& dtype);

  /// Runs the model on a text without gradients and returns its attention. Throws io::Error if the
  /// text is empty, is longer than the model reads, or has ids outside the vocabulary.
  std::vector<ModelPart> read(const AnalyzedText& text);

  /// True for an encoder-decoder.
  bool writes() const { return static_cast<bool>(encoder_decoder_); }
  /// Returns the text that an encoder-decoder writes about a text, with its start token.
  std::vector<int64_t> write(const AnalyzedText& text, int64_t max_tokens);
  /// Returns the start token of the decoder.
  int64_t first_written() const;

  const std::string folder;
  const nn::ModelConfig config;
  std::optional<io::Tokenizer> tokenizer;
  std::string name;         // of the run, or of the folder
  std::string description;  // attention and sizes

 private:
  using Traces = std::vector<nn::AttentionTrace>;
  torch::Tensor tensor_of(const std::vector<int64_t>& ids, const std::string& given_as) const;
  void append_parts(std::vector<ModelPart>& parts, const std::string& name, const Traces& traces,
                    const std::vector<std::shared_ptr<nn::AttentionLayer>>& layers) const;
  std::shared_ptr<torch::nn::Module> load(const std::string& dtype);

  torch::Device device_;
  nn::Stack stack_{nullptr};  // layers of all models but encoder-decoders
  nn::EncoderDecoder encoder_decoder_{nullptr};
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace diffattn::app
