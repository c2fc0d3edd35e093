// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/fused_adamw.h"

#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "ops/glue/view_of.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;

/// Copies a table of plain structs to the device without waiting for it.
template <class Row>
Tensor on_device(const std::vector<Row>& rows, torch::Device device) {
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(Row));
  const Tensor host =
      torch::empty({bytes}, torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), rows.data(), static_cast<size_t>(bytes));
  return host.to(device, /*non_blocking=*/true);
}

bool is_dense_float(const Tensor& t) {
  return t.scalar_type() == torch::kFloat32 && t.is_contiguous();
}

cuda::AdamWTensor table_row(const AdamWParameter& p, const Tensor& gradient) {
  cuda::AdamWTensor row{};
  row.parameter = p.parameter.mutable_data_ptr<float>();
  row.exp_avg = p.exp_avg.mutable_data_ptr<float>();
  row.exp_avg_sq = p.exp_avg_sq.mutable_data_ptr<float>();
  row.step = p.step.mutable_data_ptr<float>();
  row.copy = p.copy.defined() ? p.copy.mutable_data_ptr() : nullptr;
  row.count = p.parameter.numel();
  row.weight_decay = static_cast<float>(p.weight_decay);
  row.vectors = 1;
  for (const Tensor& t : {p.parameter, p.exp_avg, p.exp_avg_sq, p.copy, gradient}) {
    if (t.defined() && !ops::is_aligned(t)) row.vectors = 0;
  }
  if (!gradient.defined()) return row;
  row.gradient = gradient.const_data_ptr();
  row.wide_gradient = gradient.scalar_type() == torch::kFloat32;
  return row;
}

}  // namespace

bool FusedAdamW::takes(const std::vector<AdamWParameter>& parameters) {
  if (parameters.empty() || ops::cuda_layers() == nullptr) return false;
  const torch::Device device = parameters.front().parameter.device();
  for (const AdamWParameter& p : parameters) {
    if (!device.is_cuda() || p.parameter.device() != device || !is_dense_float(p.parameter) ||
        !is_dense_float(p.exp_avg) || !is_dense_float(p.exp_avg_sq) || !is_dense_float(p.step) ||
        p.parameter.numel() == 0) {
      return false;
    }
    if (p.copy.defined() && (p.copy.scalar_type() != torch::kBFloat16 || !p.copy.is_contiguous())) {
      return false;
    }
  }
  return true;
}

FusedAdamW::FusedAdamW(std::vector<AdamWParameter> parameters)
    : parameters_(std::move(parameters)) {
  TORCH_CHECK(takes(parameters_), "FusedAdamW: expected float32 parameters on one GPU");
  std::vector<cuda::AdamWChunk> chunks;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t count = parameters_[i].parameter.numel();
    for (int64_t part = 0; part * cuda::kAdamWChunk < count; ++part) {
      chunks.push_back({static_cast<int32_t>(i), static_cast<int32_t>(part)});
    }
  }
  const auto& first = parameters_.front().parameter;
  const auto floats = torch::TensorOptions().dtype(torch::kFloat32).device(first.device());
  chunk_count_ = static_cast<int64_t>(chunks.size());
  chunks_ = on_device(chunks, first.device());
  partial_ = torch::empty({chunk_count_}, floats);
  factor_ = torch::empty({}, floats);
}

Tensor FusedAdamW::step(const std::vector<Tensor>& gradients, const Tensor& loss,
                        const AdamWUpdate& update) {
  TORCH_CHECK(gradients.size() == parameters_.size(), "FusedAdamW: expected ", parameters_.size(),
              " gradients, got ", gradients.size());
  const torch::NoGradGuard no_grad;
  const torch::Device device = factor_.device();
  const c10::DeviceGuard guard(device);
  std::vector<cuda::AdamWTensor> table;
  std::vector<Tensor> kept;  // until the kernels are enqueued
  for (size_t i = 0; i < gradients.size(); ++i) {
    Tensor gradient = gradients[i];
    if (gradient.defined()) {
      TORCH_CHECK(
          gradient.sizes() == parameters_[i].parameter.sizes() && gradient.device() == device,
          "FusedAdamW: gradient ", i, ": expected ", parameters_[i].parameter.sizes(), " on ",
          device, ", got ", gradient.sizes(), " on ", gradient.device());
      const bool narrow = gradient.scalar_type() == torch::kBFloat16;
      gradient = (narrow ? gradient : gradient.to(torch::kFloat32)).contiguous();
      kept.push_back(gradient);
    }
    table.push_back(table_row(parameters_[i], gradient));
  }
  const Tensor rows = on_device(table, device);
  const Tensor norm = torch::empty({}, factor_.options());
  ops::cuda_layers()->adamw(
      {.tensors = static_cast<const cuda::AdamWTensor*>(rows.const_data_ptr()),
       .chunks = static_cast<const cuda::AdamWChunk*>(chunks_.const_data_ptr()),
       .partial = partial_.mutable_data_ptr<float>(),
       .factor = factor_.mutable_data_ptr<float>(),
       .loss = loss.const_data_ptr<double>(),
       .norm = norm.mutable_data_ptr<float>(),
       .tensor_count = static_cast<int64_t>(table.size()),
       .chunk_count = chunk_count_,
       .learning_rate = update.learning_rate,
       .beta1 = update.beta1,
       .beta2 = update.beta2,
       .eps = update.eps,
       .max_norm = update.max_norm},
      ops::current_stream(device));
  return norm;
}

}  // namespace diffattn
