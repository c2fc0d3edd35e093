// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/gated.h"

#include <ATen/autocast_mode.h>

#include "diffattn/ops_layers.h"
#include "kernels/layers.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class GatedProducts : public torch::autograd::Function<GatedProducts> {
 public:
  /// x [T, E] -> [T, I].
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gate,
                        const Tensor& up) {
    const int64_t rows = x.size(0), width = gate.size(0);
    const Tensor both = torch::mm(x, torch::cat({gate, up}).t());  // [T, 2 I]
    const Tensor y = torch::empty({rows, width}, x.options());
    cpu::swiglu_rows(both.const_data_ptr<float>(), y.mutable_data_ptr<float>(), rows, width);
    ctx->save_for_backward({x, gate, up, both});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("gated_products");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gate = saved[1], &up = saved[2], &both = saved[3];
    const int64_t rows = x.size(0), width = gate.size(0);
    const Tensor dy = grads[0].contiguous(), dboth = torch::empty_like(both);
    cpu::swiglu_rows_backward(dy.const_data_ptr<float>(), both.const_data_ptr<float>(),
                              dboth.mutable_data_ptr<float>(), rows, width);
    Tensor dx, dgate, dup;
    if (ctx->needs_input_grad(0)) dx = torch::mm(dboth, torch::cat({gate, up}));
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      const Tensor dweights = torch::mm(dboth.t(), x);
      dgate = dweights.narrow(0, 0, width);
      dup = dweights.narrow(0, width, width);
    }
    return {dx, dgate, dup};
  }
};

/// True if one product is faster: training in float32 on the CPU, with more rows than twice the
/// width of x, so that concatenating the two matrices costs little.
bool is_one_product(const Tensor& x, const Tensor& gate, const Tensor& up) {
  const auto fits = [](const Tensor& t) {
    return t.device().is_cpu() && t.scalar_type() == torch::kFloat32 && t.is_contiguous();
  };
  return torch::GradMode::is_enabled() && !at::autocast::is_autocast_enabled(at::kCPU) && fits(x) &&
         fits(gate) && fits(up) && x.dim() >= 2 && gate.dim() == 2 && gate.sizes() == up.sizes() &&
         x.size(-1) == gate.size(1) && gate.numel() > 0 &&
         x.numel() / x.size(-1) > 2 * gate.size(1) &&
         (x.requires_grad() || gate.requires_grad() || up.requires_grad());
}

}  // namespace

Tensor gated_products(const Tensor& x, const Tensor& gate, const Tensor& up) {
  if (!is_one_product(x, gate, up)) {
    return swiglu(diffattn::linear(x, gate), diffattn::linear(x, up));
  }
  const Tensor y = GatedProducts::apply(x.flatten(0, -2), gate, up);
  auto sizes = x.sizes().vec();
  sizes.back() = gate.size(0);
  return y.view(sizes);
}

}  // namespace diffattn
