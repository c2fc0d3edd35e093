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

/// The predictions of a model for the n labels that count.
struct Predictions {
  torch::Tensor loss;       // [n] float32: cross-entropy, without smoothing and class weights
  torch::Tensor predicted;  // [n] int64
  torch::Tensor labels;     // [n] int64
  /// [n] int64: number of tokens that the prediction depends on. Language models: the context of
  /// the token; classifiers: the text; summarisers: the document.
  torch::Tensor lengths;
};

/// A model with the loss of its task.
class TaskModel {
 public:
  using Traces = std::vector<nn::AttentionTrace>;
  virtual ~TaskModel() = default;

  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  virtual const nn::ModelConfig& config() const = 0;
  virtual void checkpoint_activations(bool on, KeepAttention keep) = 0;
  /// Computes the training loss. If `traces` is not null, it receives every attention layer of the
  /// model; for an encoder-decoder: encoder, decoder, cross-attention.
  virtual nn::TokenLoss loss(const Batch& batch, const nn::CrossEntropyOptions& options,
                             Traces* traces) = 0;
  /// Returns the sum of the weights of the batch's labels, by which `loss` divides: the means of
  /// several batches, weighted by it, give the mean of all. By default every label that counts
  /// weighs 1. The z-loss and the attention penalty are other means.
  virtual double loss_weight(const Batch& batch) const;
  /// Predicts without gradients. The model should be in evaluation mode.
  virtual Predictions predict(const Batch& batch, Traces* traces = nullptr) = 0;

  /// Writes the model folder, see models::save_model.
  void save(const std::string& folder) const;
  torch::Device device() const;
  int64_t parameter_count() const;
};

/// Returns a model whose loss is that of the next token, over the labels that count.
std::shared_ptr<TaskModel> language_model(nn::CausalLM model);
/// Returns a model whose loss weights each class by `class_weights` [classes] float32, if defined.
std::shared_ptr<TaskModel> classifier_model(Classifier model, torch::Tensor class_weights = {});
std::shared_ptr<TaskModel> summarizer_model(nn::EncoderDecoder model);

/// Returns the number of rows of each sequence that are not padding, [B], for each of the `layers`
/// layers that `model` traced on `batch`. The entries are nullopt if the batch has no lengths.
std::vector<std::optional<torch::Tensor>> traced_row_lengths(const TaskModel& model,
                                                             const Batch& batch, size_t layers);

/// Computes the loss and the likeliest token of each row of `hidden` [n, E] for labels [n]. Every
/// label counts. It computes the logits in chunks and leaves `lengths` undefined.
Predictions predict_tokens(const torch::Tensor& hidden, const torch::Tensor& weight,
                           const torch::Tensor& labels);

}  // namespace diffattn::train
