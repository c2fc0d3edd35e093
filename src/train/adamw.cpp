// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/adamw.h"

#include <cmath>
#include <unordered_set>
#include <utility>

#include "diffattn/error.h"
#include "ops/layers/fused_adamw.h"
#include "train/working_copy.h"

namespace diffattn::train {

using torch::Tensor;

bool is_decayed(const std::string& name, const Tensor& parameter) {
  return parameter.dim() >= 2 && name.find("lambda") == std::string::npos;
}

std::vector<OptimizedTensor> optimized_tensors(const torch::nn::Module& model) {
  std::vector<OptimizedTensor> found;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    const Tensor& parameter = item.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    found.push_back({item.key(), parameter, is_decayed(item.key(), parameter)});
  }
  return found;
}

AdamW::AdamW(const torch::nn::Module& model, const AdamWOptions& options, const WorkingCopy* copies)
    : AdamW(optimized_tensors(model), options, copies) {}

AdamW::AdamW(std::vector<OptimizedTensor> tensors, const AdamWOptions& options,
             const WorkingCopy* copies, std::function<void(Tensor&)> sum_over_processes)
    : options_(options),
      groups_{{options.weight_decay, {}, {}, {}, {}, {}}, {0.0, {}, {}, {}, {}, {}}},
      sum_over_processes_(std::move(sum_over_processes)) {
  for (OptimizedTensor& item : tensors) {
    Group& group = groups_[item.decayed ? 0 : 1];
    const Tensor& parameter = item.tensor;
    group.exp_avg.push_back(torch::zeros_like(parameter));
    group.exp_avg_sq.push_back(torch::zeros_like(parameter));
    group.steps.push_back(torch::zeros({}, parameter.options().dtype(torch::kFloat32)));
    group.names.push_back(std::move(item.name));
    group.parameters.push_back(parameter);
  }
  std::vector<AdamWParameter> all;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      all.push_back({.parameter = group.parameters[i],
                     .exp_avg = group.exp_avg[i],
                     .exp_avg_sq = group.exp_avg_sq[i],
                     .step = group.steps[i],
                     .copy = copies ? copies->copy_of(group.parameters[i]) : Tensor(),
                     .weight_decay = group.weight_decay});
    }
  }
  // The kernels compute the norm of the gradients of this process.
  if (!sum_over_processes_ && FusedAdamW::takes(all))
    fused_ = std::make_unique<FusedAdamW>(std::move(all));
}

AdamW::AdamW(AdamW&&) noexcept = default;
AdamW::~AdamW() = default;

Tensor AdamW::update(const Tensor& loss, double learning_rate, double max_norm) {
  if (fused_) {
    std::vector<Tensor> all;
    for (const Group& group : groups_) {
      for (const Tensor& parameter : group.parameters) all.push_back(parameter.grad());
    }
    return fused_->step(all, loss,
                        {.learning_rate = learning_rate,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .max_norm = max_norm});
  }
  const Tensor norm = gradient_norm();
  const double size = norm.item<double>();
  if (!std::isfinite(loss.item<double>()) || !std::isfinite(size)) return norm;
  if (max_norm > 0.0 && size > max_norm) clip_gradients(norm, max_norm);
  step(learning_rate);
  return norm;
}

std::vector<Tensor> AdamW::gradients() const {
  std::vector<Tensor> found;
  for (const Group& group : groups_) {
    for (const Tensor& parameter : group.parameters) {
      if (parameter.grad().defined()) found.push_back(parameter.grad());
    }
  }
  return found;
}

Tensor AdamW::gradient_norm() const {
  const torch::NoGradGuard no_grad;
  const auto grads = gradients();
  if (grads.empty()) {
    throw Error("diffattn: AdamW: expected parameters with gradients, got none with one");
  }
  if (!sum_over_processes_) {
    return torch::linalg_vector_norm(torch::stack(at::_foreach_norm(grads)), 2);
  }
  // float32 sums of millions of squares lose four digits, so sums of 64 add up in float64.
  constexpr int64_t kGroup = 64;
  Tensor squares = torch::zeros({}, grads.front().options().dtype(torch::kFloat64));
  for (const Tensor& gradient : grads) {
    const int64_t whole = gradient.numel() / kGroup * kGroup;
    const Tensor flat = gradient.flatten();
    const Tensor groups =
        torch::linalg_vector_norm(flat.narrow(0, 0, whole).view({-1, kGroup}), 2, {1});
    squares += groups.to(torch::kFloat64).square().sum();
    squares += flat.slice(0, whole).to(torch::kFloat64).square().sum();
  }
  sum_over_processes_(squares);
  return squares.sqrt().to(torch::kFloat32);
}

void AdamW::clip_gradients(const Tensor& norm, double max_norm) {
  const torch::NoGradGuard no_grad;
  auto grads = gradients();
  at::_foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp_max(1.0));
}

void AdamW::step(double learning_rate) {
  const torch::NoGradGuard no_grad;
  for (Group& group : groups_) {
    std::vector<Tensor> parameters, grads, exp_avg, exp_avg_sq, steps;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (!group.parameters[i].grad().defined()) continue;
      parameters.push_back(group.parameters[i]);
      grads.push_back(group.parameters[i].grad().to(group.parameters[i].scalar_type()));
      exp_avg.push_back(group.exp_avg[i]);
      exp_avg_sq.push_back(group.exp_avg_sq[i]);
      steps.push_back(group.steps[i]);
    }
    if (parameters.empty()) continue;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, grads, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, options_.beta1, options_.beta2, group.weight_decay,
                      options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

void AdamW::zero_grad() {
  for (Group& group : groups_) {
    for (Tensor& parameter : group.parameters) parameter.mutable_grad() = Tensor();
  }
}

std::vector<std::pair<std::string, Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, Tensor>> result;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      result.emplace_back(group.names[i] + ".exp_avg", group.exp_avg[i]);
      result.emplace_back(group.names[i] + ".exp_avg_sq", group.exp_avg_sq[i]);
      result.emplace_back(group.names[i] + ".step", group.steps[i]);
    }
  }
  return result;
}

}  // namespace diffattn::train
