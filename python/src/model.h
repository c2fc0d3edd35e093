// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "diffattn/infer/generator.h"
#include "diffattn/nn/decoder.h"
#include "python/src/folder_text.h"

namespace diffattn::python {

/// Called with every new token: the row, the token, and the piece of UTF-8 text that it completes,
/// which may be empty. At the end of a row a rest of text may follow, with token -1. Returns 0 to
/// continue; any other number stops all rows.
using OnText = int (*)(int64_t row, int64_t token, const char* text);

/// A causal language model in memory, with its tokenizer: torch.classes.diffattn.Model. torch
/// releases the GIL while a method runs.
class Model : public torch::CustomClassHolder {
 public:
  /// Loads a model folder. `dtype` is "float32", "bfloat16" or "float16".
  Model(const std::string& folder, const std::string& dtype, const std::string& device);
  /// Makes the model of a folder's config.json from tensors that somebody else holds, without a
  /// copy. Throws io::Error if one is missing or has another shape.
  Model(const std::string& folder, const Weights& weights);

  /// True if fused steps compute the tokens; else `reason` says why not.
  bool uses_steps() const { return generator_->uses_steps(); }
  std::string reason() const { return generator_->reason(); }

  /// Returns the text of config.json.
  std::string config() const;
  const torch::nn::Module& module() const { return *model_; }
  /// Prepares generation again, after the parameters moved to another device or type.
  void refresh() { generator_.emplace(model_); }
  /// Tokens that end a text.
  Ids stop_tokens() const;

  /// Returns the logits of ids [B, N] (int64), [B, N, V], with gradients if they are enabled.
  torch::Tensor forward(const torch::Tensor& ids);

  /// Continues each prompt. `options` is a JSON object with the names of nn::SamplingOptions, and
  /// `stop`: texts before which a continuation ends. `on_text` is the address of an OnText
  /// function, or 0. Returns the new tokens and, with a tokenizer, the new texts.
  std::tuple<std::vector<Ids>, std::vector<std::string>> generate(const std::vector<Ids>& prompts,
                                                                  const std::string& options,
                                                                  int64_t on_text);

  const FolderText text;

 private:
  nn::CausalLM model_{nullptr};
  std::optional<infer::Generator> generator_;
  std::mutex generating_;  // threads of Python take turns with the generator
};

}  // namespace diffattn::python
