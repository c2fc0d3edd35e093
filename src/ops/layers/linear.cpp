// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>

#include "diffattn/ops_layers.h"
#include "kernels/few_rows.h"
#include "ops/glue/view_of.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;

bool makes_graph(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return torch::GradMode::is_enabled() &&
         (x.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
}

bool takes_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto type = x.scalar_type();
  const auto fits = [&](const Tensor& t) {
    return t.device().is_cpu() && t.scalar_type() == type && t.is_contiguous();
  };
  if (type != torch::kFloat32 && type != torch::kBFloat16) return false;
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return false;
  if (x.numel() == 0 || weight.numel() == 0 || x.numel() > ops::kFewRows * x.size(-1)) return false;
  if (bias.defined() && (!fits(bias) || bias.dim() != 1 || bias.size(0) != weight.size(0))) {
    return false;
  }
  return x.device().is_cpu() && fits(weight) && !makes_graph(x, weight, bias) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!takes_few_rows(x, weight, bias)) return torch::linear(x, weight, bias);
  const Tensor wide = x.to(torch::kFloat32).contiguous();
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const Tensor y = torch::empty(sizes, wide.options());
  const cpu::FewRowsMatrix matrix{.weight = weight.const_data_ptr(),
                                  .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                                  .y = y.mutable_data_ptr<float>(),
                                  .outputs = weight.size(0)};
  cpu::few_rows({.x = wide.const_data_ptr<float>(),
                 .rows = x.numel() / x.size(-1),
                 .width = x.size(-1),
                 .dtype = ops::dtype_of(weight),
                 .matrices = {&matrix, 1}});
  return y.to(x.scalar_type());
}

}  // namespace diffattn
