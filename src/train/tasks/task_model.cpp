// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/task_model.h"

#include <algorithm>

#include "diffattn/models/model_folder.h"

namespace diffattn::train {
namespace {

using torch::Tensor;
using Traces = TaskModel::Traces;

constexpr int64_t kPredictionChunkBytes = int64_t{64} << 20;

/// Selects the rows of `values` [B, N, ...] or [total, ...] whose labels count.
Tensor answered(const Tensor& values, int64_t label_dims, const Tensor& rows) {
  return values.flatten(0, label_dims - 1).index_select(0, rows);
}

Tensor rows_with_label(const Batch& batch) {
  if (batch.answer_rows) return *batch.answer_rows;
  return (batch.labels.flatten() != nn::CrossEntropyOptions().ignore_index()).nonzero().squeeze(1);
}

/// Returns the position of each token in its sequence, counted from 1, in the shape of ids.
Tensor context_lengths(const Batch& batch) {
  if (batch.positions) return (*batch.positions + 1).expand_as(batch.ids);
  const Tensor line = torch::arange(1, batch.ids.size(-1) + 1, batch.ids.options());
  return line.expand_as(batch.ids);
}

void append_traces(Traces& all, Traces part) {
  std::move(part.begin(), part.end(), std::back_inserter(all));
}

class LanguageTaskModel final : public TaskModel {
 public:
  explicit LanguageTaskModel(nn::CausalLM model) : model_(std::move(model)) {}
  std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  const nn::ModelConfig& config() const override { return model_->config; }
  void checkpoint_activations(bool on, KeepAttention keep) override {
    model_->model->checkpoint_activations(on, keep);
  }

  nn::TokenLoss loss(const Batch& batch, const nn::CrossEntropyOptions& options,
                     Traces* traces) override {
    const Tensor hidden = forward(batch, traces);
    const Tensor weight = model_->head_weight();
    if (!batch.answer_rows) return nn::linear_cross_entropy(hidden, weight, batch.labels, options);
    const Tensor labels = batch.labels.flatten().index_select(0, *batch.answer_rows);
    return nn::linear_cross_entropy(answered(hidden, batch.labels.dim(), *batch.answer_rows),
                                    weight, labels, options);
  }

  Predictions predict(const Batch& batch, Traces* traces) override {
    const torch::NoGradGuard no_grad;
    const Tensor hidden = forward(batch, traces);
    const Tensor rows = rows_with_label(batch);
    Predictions result =
        predict_tokens(answered(hidden, batch.labels.dim(), rows), model_->head_weight(),
                       batch.labels.flatten().index_select(0, rows));
    result.lengths = context_lengths(batch).flatten().index_select(0, rows);
    return result;
  }

 private:
  Tensor forward(const Batch& batch, Traces* traces) {
    nn::DecoderInput input = batch.model_input();
    input.traces = traces;
    return model_->forward(input).last;
  }

  nn::CausalLM model_;
};

class ClassificationTaskModel final : public TaskModel {
 public:
  ClassificationTaskModel(Classifier model, Tensor class_weights)
      : model_(std::move(model)), class_weights_(std::move(class_weights)) {}
  std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  const nn::ModelConfig& config() const override { return model_->config; }
  void checkpoint_activations(bool on, KeepAttention keep) override {
    model_->model->checkpoint_activations(on, keep);
  }

  nn::TokenLoss loss(const Batch& batch, const nn::CrossEntropyOptions& options,
                     Traces* traces) override {
    auto chosen = torch::nn::functional::CrossEntropyFuncOptions()
                      .ignore_index(options.ignore_index())
                      .label_smoothing(options.label_smoothing());
    if (class_weights_.defined()) chosen.weight(class_weights_.to(batch.labels.device()));
    const Tensor scores = logits(batch, traces);
    Tensor mean = torch::nn::functional::cross_entropy(scores, batch.labels, chosen);
    const Tensor counts = batch.labels != options.ignore_index();
    if (options.z_loss() != 0.0) {
      const Tensor squares = torch::where(counts, scores.logsumexp(-1).square(), 0.0);
      mean = mean + options.z_loss() * squares.sum() / counts.sum();
    }
    return {mean, counts.sum()};
  }

  double loss_weight(const Batch& batch) const override {
    if (!class_weights_.defined()) return TaskModel::loss_weight(batch);
    const Tensor labels = batch.labels.to(class_weights_.device());
    const Tensor counted = labels.masked_select(labels != nn::CrossEntropyOptions().ignore_index());
    return class_weights_.index_select(0, counted).sum(torch::kFloat64).item<double>();
  }

  Predictions predict(const Batch& batch, Traces* traces) override {
    const torch::NoGradGuard no_grad;
    const Tensor scores = logits(batch, traces);
    const auto none = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
    return {torch::nn::functional::cross_entropy(scores, batch.labels, none), scores.argmax(-1),
            batch.labels, batch.mask.key_lengths().value()};
  }

 private:
  Tensor logits(const Batch& batch, Traces* traces) {
    nn::ModelInput input = batch.model_input();
    input.traces = traces;
    return model_->forward(input).logits.to(torch::kFloat32);
  }

  Classifier model_;
  Tensor class_weights_;
};

class SummarizationTaskModel final : public TaskModel {
 public:
  explicit SummarizationTaskModel(nn::EncoderDecoder model) : model_(std::move(model)) {}
  std::shared_ptr<torch::nn::Module> module() const override { return model_.ptr(); }
  const nn::ModelConfig& config() const override { return model_->config; }
  void checkpoint_activations(bool on, KeepAttention keep) override {
    model_->checkpoint_activations(on, keep);
  }

  nn::TokenLoss loss(const Batch& batch, const nn::CrossEntropyOptions& options,
                     Traces* traces) override {
    return nn::linear_cross_entropy(forward(batch, traces), model_->head_weight(), batch.labels,
                                    options);
  }

  Predictions predict(const Batch& batch, Traces* traces) override {
    const torch::NoGradGuard no_grad;
    const Tensor hidden = forward(batch, traces);
    const Tensor rows = rows_with_label(batch);
    Predictions result =
        predict_tokens(answered(hidden, batch.labels.dim(), rows), model_->head_weight(),
                       batch.labels.flatten().index_select(0, rows));
    const Tensor lengths = batch.mask.key_lengths().value().unsqueeze(1).expand_as(batch.labels);
    result.lengths = lengths.flatten().index_select(0, rows);
    return result;
  }

 private:
  Tensor forward(const Batch& batch, Traces* traces) {
    Traces encoder, decoder, cross;
    nn::ModelInput source = batch.model_input();
    nn::ModelInput target;
    target.ids = batch.target_ids;
    if (traces) {
      source.traces = &encoder;
      target.traces = &decoder;
      target.cross_traces = &cross;
    }
    const nn::Encoded encoded = model_->encode(source);
    const Tensor hidden = model_->decode(target, encoded).last;
    if (traces) {
      traces->clear();
      append_traces(*traces, std::move(encoder));
      append_traces(*traces, std::move(decoder));
      append_traces(*traces, std::move(cross));
    }
    return hidden;
  }

  nn::EncoderDecoder model_;
};

}  // namespace

void TaskModel::save(const std::string& folder) const {
  models::save_model(folder, *module(), config());
}

double TaskModel::loss_weight(const Batch& batch) const {
  return static_cast<double>(batch.label_count());
}

torch::Device TaskModel::device() const { return module()->parameters().front().device(); }

int64_t TaskModel::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : module()->parameters()) count += parameter.numel();
  return count;
}

std::shared_ptr<TaskModel> language_model(nn::CausalLM model) {
  return std::make_shared<LanguageTaskModel>(std::move(model));
}

std::shared_ptr<TaskModel> classifier_model(Classifier model, Tensor class_weights) {
  return std::make_shared<ClassificationTaskModel>(std::move(model), std::move(class_weights));
}

std::shared_ptr<TaskModel> summarizer_model(nn::EncoderDecoder model) {
  return std::make_shared<SummarizationTaskModel>(std::move(model));
}

std::vector<std::optional<Tensor>> traced_row_lengths(const TaskModel& model, const Batch& batch,
                                                      size_t layers) {
  std::vector<std::optional<Tensor>> lengths(layers, batch.mask.key_lengths());
  if (!batch.target_ids.defined()) return lengths;
  // The layers of the encoder come first. In all others the rows are targets, one per label.
  const Tensor targets = (batch.labels != nn::CrossEntropyOptions().ignore_index()).sum(1);
  for (auto i = static_cast<size_t>(model.config().num_encoder_layers); i < layers; ++i) {
    lengths[i] = targets;
  }
  return lengths;
}

Predictions predict_tokens(const Tensor& hidden, const Tensor& weight, const Tensor& labels) {
  const torch::NoGradGuard no_grad;
  const int64_t rows = std::max<int64_t>(1, kPredictionChunkBytes / (4 * weight.size(0)));
  std::vector<Tensor> losses, predicted;
  for (int64_t begin = 0; begin < hidden.size(0); begin += rows) {
    const int64_t end = std::min(hidden.size(0), begin + rows);
    const Tensor logits = torch::nn::functional::linear(hidden.slice(0, begin, end), weight)
                              .to(torch::kFloat32);  // [n, V]
    const Tensor wanted = labels.slice(0, begin, end).unsqueeze(1);
    losses.push_back(logits.logsumexp(1) - logits.gather(1, wanted).squeeze(1));
    predicted.push_back(logits.argmax(1));
  }
  if (losses.empty()) {
    return {torch::empty({0}, labels.options().dtype(torch::kFloat32)),
            torch::empty({0}, labels.options()),
            labels,
            {}};
  }
  return {torch::cat(losses), torch::cat(predicted), labels, {}};
}

}  // namespace diffattn::train
