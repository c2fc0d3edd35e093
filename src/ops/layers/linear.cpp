// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <span>

#include "diffattn/kernels/error.h"
#include "diffattn/ops_layers.h"
#include "kernels/few_rows.h"
#include "ops/glue/view_of.h"
#include "ops/layers/float_product.h"
#include "ops/layers/layers.h"
#include "ops/layers/linears.h"
#include "ops/layers/rounded_inputs.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local int64_t input_bits = 0;  // 0: no rounding

/// Rounds each row to integers of input_bits bits times a scale of its own.
Tensor rounded(const Tensor& x) {
  const auto most = static_cast<double>((int64_t{1} << (input_bits - 1)) - 1);
  const Tensor wide = x.to(torch::kFloat32);
  const Tensor largest = wide.abs().amax(-1, /*keepdim=*/true);
  // A row of zeros stays zero with any scale.
  const Tensor scale = torch::where(largest > 0, largest / most, 1.0);
  return ((wide / scale).round_() * scale).to(x.scalar_type());
}

bool makes_graph(const Tensor& x, const LinearMap& map) {
  return torch::GradMode::is_enabled() && (x.requires_grad() || map.weight.requires_grad() ||
                                           (map.bias.defined() && map.bias.requires_grad()));
}

/// True if x and map are in host memory and of one type that our kernel knows.
bool are_on_host(const Tensor& x, const LinearMap& map) {
  const Tensor &weight = map.weight, &bias = map.bias;
  const auto type = x.scalar_type();
  const auto fits = [&](const Tensor& t) {
    return t.device().is_cpu() && t.scalar_type() == type && t.is_contiguous();
  };
  if (type != torch::kFloat32 && type != torch::kBFloat16) return false;
  if (x.numel() == 0 || weight.numel() == 0) return false;
  if (bias.defined() && !fits(bias)) return false;
  return x.device().is_cpu() && fits(weight) && !at::autocast::is_autocast_enabled(at::kCPU);
}

void check(const Tensor& x, const LinearMap& map) {
  if (map.weight.dim() != 2) {
    throw_argument_error("linear.weight", "[out, in]", c10::str(map.weight.sizes()));
  }
  if (x.dim() < 1 || x.size(-1) != map.weight.size(1)) {
    throw_argument_error(
        "linear.x",
        c10::str("[..., ", map.weight.size(1), "] for a weight of ", map.weight.sizes()),
        c10::str(x.sizes()));
  }
  if (map.bias.defined() && (map.bias.dim() != 1 || map.bias.size(0) != map.weight.size(0))) {
    throw_argument_error("linear.bias", c10::str("[", map.weight.size(0), "]"),
                         c10::str(map.bias.sizes()));
  }
}

bool are_few_rows(const Tensor& x) {
  return x.numel() <= ops::few_rows_limit(x.scalar_type(), ops::kFewRows) * x.size(-1);
}

std::vector<Tensor> by_few_rows(const Tensor& x, std::span<const LinearMap> maps) {
  const Tensor wide = x.to(torch::kFloat32).contiguous();
  std::vector<Tensor> results;
  std::vector<cpu::FewRowsMatrix> matrices;
  for (const LinearMap& map : maps) {
    auto sizes = x.sizes().vec();
    sizes.back() = map.weight.size(0);
    results.push_back(torch::empty(sizes, wide.options()));
    matrices.push_back({.weight = map.weight.const_data_ptr(),
                        .bias = map.bias.defined() ? map.bias.const_data_ptr() : nullptr,
                        .y = results.back().mutable_data_ptr<float>(),
                        .outputs = map.weight.size(0)});
  }
  cpu::few_rows({.x = wide.const_data_ptr<float>(),
                 .rows = x.numel() / x.size(-1),
                 .width = x.size(-1),
                 .dtype = ops::dtype_of(x),
                 .matrices = matrices});
  for (Tensor& y : results) y = y.to(x.scalar_type());
  return results;
}

/// A linear map of float32 rows on a CPU where MKL uses half of the processor. With and without
/// gradients it computes the same bits, which activation checkpointing needs.
class FloatLinear : public torch::autograd::Function<FloatLinear> {
 public:
  /// x [M, in], weight [out, in] -> [M, out].
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    ctx->save_for_backward({x, weight});
    if (!are_few_rows(x)) return ops::product(x, weight.t());
    const LinearMap map{weight, {}};
    return by_few_rows(x, {&map, 1}).front();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("linear");
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();  // it may be one number, expanded
    Tensor dx, dweight;
    if (ctx->needs_input_grad(0)) dx = ops::product(dy, saved[1]);
    if (ctx->needs_input_grad(1)) dweight = ops::product(dy.t(), saved[0]);
    return {dx, dweight};
  }
};

Tensor float_linear(const Tensor& x, const LinearMap& map) {
  auto sizes = x.sizes().vec();
  sizes.back() = map.weight.size(0);
  Tensor y = FloatLinear::apply(x.reshape({-1, x.size(-1)}), map.weight);
  if (map.bias.defined()) y.add_(map.bias);
  return x.dim() == 2 ? y : y.view(sizes);
}

}  // namespace

RoundedInputs::RoundedInputs(int64_t bits) : before_(input_bits) { input_bits = bits; }
RoundedInputs::~RoundedInputs() { input_bits = before_; }

std::vector<Tensor> linears(const Tensor& given, std::initializer_list<LinearMap> maps) {
  for (const LinearMap& map : maps) check(given, map);
  const Tensor x = input_bits > 0 && given.numel() > 0 ? rounded(given) : given;
  const auto few = [&](const LinearMap& map) {
    return are_on_host(x, map) && are_few_rows(x) && !makes_graph(x, map);
  };
  if (std::ranges::all_of(maps, few)) return by_few_rows(x, maps);
  std::vector<Tensor> results;
  for (const LinearMap& map : maps) {
    const bool ours =
        x.scalar_type() == torch::kFloat32 && cpu::mkl_uses_half() && are_on_host(x, map);
    results.push_back(ours ? float_linear(x, map) : torch::linear(x, map.weight, map.bias));
  }
  return results;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linears(x, {{weight, bias}}).front();
}

}  // namespace diffattn
