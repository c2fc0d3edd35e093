// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/trainer.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "diffattn/nn/attention_penalty.h"
#include "diffattn/nn/cross_entropy.h"
#include "train/flops.h"
#include "train/mixed_precision.h"
#include "train/schedule.h"

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

KeepAttention keep_from_name(const std::string& name) {
  if (name == "results") return KeepAttention::kResults;
  return name == "sums" ? KeepAttention::kSums : KeepAttention::kNothing;
}

std::shared_ptr<TaskModel> on_device(std::shared_ptr<TaskModel> model, torch::Device device,
                                     const RunConfig::Train& t) {
  model->module()->to(device);
  model->module()->train();
  model->checkpoint_activations(t.activation_checkpointing, keep_from_name(t.keep_attention));
  return model;
}

}  // namespace

Trainer::Trainer(nn::CausalLM model, const RunConfig& config)
    : Trainer(language_model(std::move(model)), config) {}

Trainer::Trainer(std::shared_ptr<TaskModel> model, const RunConfig& config)
    : config_(config),
      device_(config.train.device),
      model_(on_device(std::move(model), device_, config.train)),
      optimizer_(*model_->module(), {config.train.beta1, config.train.beta2, config.train.eps,
                                     config.train.weight_decay}),
      schedule_(std::make_unique<Schedule>(schedule_of(config.train))),
      flops_(std::make_unique<FlopCounter>(*model_->module(), model_->config())),
      peak_flops_(config.train.peak_tflops > 0.0 ? config.train.peak_tflops * 1e12
                                                 : product_speed(device_, config.train.dtype)) {}

Trainer::~Trainer() = default;

Trainer::Loss Trainer::loss_of(const Batch& batch) {
  const RunConfig::Train& t = config_.train;
  const MixedPrecision region(device_, t.dtype);
  const bool penalized = t.sparsity_weight != 0.0 || t.focus_weight != 0.0;
  std::vector<nn::AttentionTrace> traces;
  const nn::TokenLoss loss = model_->loss(
      batch, nn::CrossEntropyOptions().label_smoothing(t.label_smoothing).z_loss(t.z_loss),
      penalized && torch::GradMode::is_enabled() ? &traces : nullptr);
  Tensor value = loss.mean;
  if (!traces.empty()) {
    const nn::AttentionPenalty penalty =
        nn::attention_penalty(traces, traced_row_lengths(*model_, batch, traces.size()));
    value = value + t.sparsity_weight * penalty.sparsity + t.focus_weight * penalty.focus;
  }
  return {value, loss.count};
}

// Lambda is 0 in the first update and has its full value after the last update of the warm-up.
void Trainer::warm_up_lambda() {
  const int64_t steps = config_.train.lambda_warmup_steps;
  if (steps == 0 || state.step > steps) return;
  nn::scale_lambda(*model_->module(), static_cast<double>(state.step) / static_cast<double>(steps));
}

StepReport Trainer::step(BatchSource& source) {
  const auto start = std::chrono::steady_clock::now();
  const RunConfig::Train& t = config_.train;
  StepReport report;
  report.learning_rate = schedule_->at(state.step);
  model_->module()->train();
  optimizer_.zero_grad();
  warm_up_lambda();
  Tensor sums = torch::zeros({2}, torch::TensorOptions().device(device_).dtype(torch::kFloat64));
  for (int64_t micro = 0; micro < t.accumulate; ++micro) {
    const Batch batch = source.next();
    report.flops += flops_->training(batch);
    report.model_tokens += batch.ids.numel();
    if (batch.target_ids.defined()) report.model_tokens += batch.target_ids.numel();
    const Loss loss = loss_of(batch.to(device_));
    (loss.value / static_cast<double>(t.accumulate)).backward();
    sums += torch::stack({loss.value.detach().to(torch::kFloat64), loss.count.to(torch::kFloat64)});
  }
  const Tensor norm = optimizer_.gradient_norm();
  // This is the only synchronisation of an update.
  const Tensor read = torch::cat({sums, norm.to(torch::kFloat64).reshape({1})}).to(torch::kCPU);
  report.loss = read[0].item<double>() / static_cast<double>(t.accumulate);
  report.tokens = read[1].item<int64_t>();
  report.gradient_norm = read[2].item<double>();
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (!report.skipped) {
    if (t.clip_norm > 0.0 && report.gradient_norm > t.clip_norm) {
      optimizer_.clip_gradients(norm, t.clip_norm);
    }
    optimizer_.step(report.learning_rate);
  }
  ++state.step;
  state.tokens += report.tokens;
  state.skipped += report.skipped ? 1 : 0;
  state.skipped_in_row = report.skipped ? state.skipped_in_row + 1 : 0;
  report.step = state.step;
  report.seconds = seconds_since(start);
  const double speed = report.flops / report.seconds;
  peak_flops_ = std::max(peak_flops_, speed);
  report.utilisation = speed / peak_flops_;
  return report;
}

}  // namespace diffattn::train
