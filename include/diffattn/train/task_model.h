// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/decoder.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/classifier.h"

namespace diffattn::train {

/// What a model says where a label counts: n labels.
struct Predictions {
  torch::Tensor loss;       // [n] float32: cross-entropy, without smoothing and class weights
  torch::Tensor predicted;  // [n] int64
  torch::Tensor labels;     // [n] int64
  /// [n] int64: tokens there were to look at: up to this one in its sequence; a classifier's text;
  /// a summary's document.
  torch::Tensor lengths;
};

/// A model together with what it learns: how a batch becomes a loss, and how it is saved.
class TaskModel {
 public:
  using Traces = std::vector<nn::AttentionTrace>;
  virtual ~TaskModel() = default;

  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  virtual const nn::ModelConfig& config() const = 0;
  virtual void checkpoint_activations(bool on, KeepAttention keep) = 0;
  /// The loss that is differentiated. `traces`, when given, gets every attention layer of the model
  /// (an encoder-decoder's: encoder, decoder, cross-attention).
  virtual nn::TokenLoss loss(const Batch& batch, const nn::CrossEntropyOptions& options,
                             Traces* traces) = 0;
  /// No gradients; the model should be in evaluation mode.
  virtual Predictions predict(const Batch& batch, Traces* traces = nullptr) = 0;

  void save(const std::string& folder) const;
  torch::Device device() const;
  int64_t parameter_count() const;
};

/// The causal model on next tokens, or on the labels that a task has.
std::shared_ptr<TaskModel> language_model(nn::CausalLM model);
/// `class_weights` [classes] float32, or undefined.
std::shared_ptr<TaskModel> classifier_model(Classifier model, torch::Tensor class_weights = {});
std::shared_ptr<TaskModel> summarizer_model(nn::EncoderDecoder model);

/// For each of the `layers` layers that `model` traced on `batch`: [B], how many rows of each
/// sequence are no padding; none where the batch does not say.
std::vector<std::optional<torch::Tensor>> traced_row_lengths(const TaskModel& model,
                                                             const Batch& batch, size_t layers);

/// Loss and likeliest class of each row [n, E] of `hidden` for labels [n] (none ignored), logits in
/// chunks as `linear_cross_entropy`. Only `loss`, `predicted` and `labels` are set.
Predictions predict_tokens(const torch::Tensor& hidden, const torch::Tensor& weight,
                           const torch::Tensor& labels);

}  // namespace diffattn::train
