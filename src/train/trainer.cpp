// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/trainer.h"

#include <ATen/autocast_mode.h>

#include <chrono>
#include <cmath>

#include "diffattn/nn/attention_penalty.h"
#include "diffattn/nn/cross_entropy.h"
#include "train/mixed_precision.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Schedule schedule_of(const RunConfig::Train& t) {
  return {.peak = t.learning_rate,
          .final_fraction = t.final_fraction,
          .warmup_steps = t.warmup_steps,
          .steps = t.steps,
          .decay = decay_from_name(t.schedule)};
}

nn::CausalLM on_device(nn::CausalLM model, torch::Device device, bool checkpointing) {
  model->to(device);
  model->train();
  model->model->checkpoint_activations(checkpointing);
  return model;
}

}  // namespace

Trainer::Trainer(nn::CausalLM model, const RunConfig& config)
    : config_(config),
      device_(config.train.device),
      model_(on_device(std::move(model), device_, config.train.activation_checkpointing)),
      optimizer_(*model_, {config.train.beta1, config.train.beta2, config.train.eps,
                           config.train.weight_decay}),
      schedule_(schedule_of(config.train)) {}

Trainer::Loss Trainer::loss_of(const Batch& batch) {
  const RunConfig::Train& t = config_.train;
  const MixedPrecision region(device_, t.dtype);
  const bool penalized = t.sparsity_weight != 0.0 || t.focus_weight != 0.0;
  std::vector<nn::AttentionTrace> traces;
  nn::DecoderInput input = batch.model_input();
  if (penalized && torch::GradMode::is_enabled()) input.traces = &traces;
  const nn::DecoderOutput output = model_->forward(input);
  const nn::TokenLoss loss = nn::linear_cross_entropy(
      output.last, model_->head_weight(), batch.labels,
      nn::CrossEntropyOptions().label_smoothing(t.label_smoothing).z_loss(t.z_loss));
  Tensor value = loss.mean;
  if (!traces.empty()) {
    const nn::AttentionPenalty penalty = nn::attention_penalty(traces);
    value = value + t.sparsity_weight * penalty.sparsity + t.focus_weight * penalty.focus;
  }
  return {value, loss.count};
}

StepReport Trainer::step(BatchSource& source) {
  const auto start = std::chrono::steady_clock::now();
  const RunConfig::Train& t = config_.train;
  StepReport report;
  report.learning_rate = schedule_.at(progress.step);
  model_->train();
  optimizer_.zero_grad();
  for (int64_t micro = 0; micro < t.accumulate; ++micro) {
    const Loss loss = loss_of(source.next().to(device_));
    (loss.value / static_cast<double>(t.accumulate)).backward();
    report.loss += loss.value.item<double>() / static_cast<double>(t.accumulate);
    report.tokens += loss.count.item<int64_t>();
  }
  const Tensor norm = optimizer_.gradient_norm();
  report.gradient_norm = norm.item<double>();
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (!report.skipped) {
    if (t.clip_norm > 0.0) optimizer_.clip_gradients(norm, t.clip_norm);
    optimizer_.step(report.learning_rate);
  }
  ++progress.step;
  progress.tokens += report.tokens;
  progress.skipped += report.skipped ? 1 : 0;
  progress.skipped_in_row = report.skipped ? progress.skipped_in_row + 1 : 0;
  report.step = progress.step;
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace diffattn::train
