// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/gated.h"

#include <ATen/autocast_mode.h>

#include "diffattn/ops_layers.h"
#include "kernels/layers.h"
#include "ops/layers/float_product.h"
#include "ops/layers/joined_rows.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes y [T, I] from rows [gate, up] of `both` [T, 2 I].
void gate_rows(const Tensor& both, const Tensor& y) {
  const int64_t rows = y.size(0), width = y.size(1);
  if (both.device().is_cuda()) {
    ops::cuda_layers()->swiglu(both.narrow(1, 0, width), both.narrow(1, width, width), y);
  } else {
    cpu::swiglu_rows(both.const_data_ptr<float>(), y.mutable_data_ptr<float>(), rows, width);
  }
}

void gate_rows_backward(const Tensor& dy, const Tensor& both, const Tensor& dboth) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  if (both.device().is_cuda()) {
    ops::cuda_layers()->swiglu_backward(ops::is_aligned(dy) ? dy : dy.clone(),
                                        both.narrow(1, 0, width), both.narrow(1, width, width),
                                        dboth.narrow(1, 0, width), dboth.narrow(1, width, width));
  } else {
    cpu::swiglu_rows_backward(dy.const_data_ptr<float>(), both.const_data_ptr<float>(),
                              dboth.mutable_data_ptr<float>(), rows, width);
  }
}

class GatedProducts : public torch::autograd::Function<GatedProducts> {
 public:
  /// x [T, E] -> [T, I].
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gate,
                        const Tensor& up) {
    const Tensor both = ops::product(x, ops::joined_rows({gate, up}).t());  // [T, 2 I]
    const Tensor y = torch::empty({x.size(0), gate.size(0)}, x.options());
    gate_rows(both, y);
    ctx->save_for_backward({x, gate, up, both});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("gated_products");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gate = saved[1], &up = saved[2], &both = saved[3];
    const int64_t width = gate.size(0);
    const Tensor dboth = torch::empty_like(both);
    gate_rows_backward(grads[0].contiguous(), both, dboth);
    Tensor dx, dgate, dup;
    if (ctx->needs_input_grad(0)) dx = ops::product(dboth, ops::joined_rows({gate, up}));
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      const Tensor dweights = ops::product(dboth.t(), x);
      dgate = dweights.narrow(0, 0, width);
      dup = dweights.narrow(0, width, width);
    }
    return {dx, dgate, dup};
  }
};

/// True if x is float32 in host memory with more rows than twice its width, so that concatenating
/// the two matrices costs little.
bool is_one_product_on_host(const Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == torch::kFloat32 &&
         !at::autocast::is_autocast_enabled(at::kCPU) && x.numel() / x.size(-1) > 2 * x.size(-1);
}

/// True on a GPU if autocast would not change the type of x.
bool is_one_product_on_gpu(const Tensor& x, const Tensor& gate) {
  const bool keeps_type = !at::autocast::is_autocast_enabled(at::kCUDA) ||
                          at::autocast::get_autocast_dtype(at::kCUDA) == x.scalar_type();
  return ops::is_for_gpu(x) && keeps_type && gate.size(0) % 8 == 0;
}

/// True if one product is faster: in training, with matrices of the type of x.
bool is_one_product(const Tensor& x, const Tensor& gate, const Tensor& up) {
  const auto fits = [&](const Tensor& t) {
    return t.device() == x.device() && t.scalar_type() == x.scalar_type() && t.is_contiguous();
  };
  return torch::GradMode::is_enabled() && fits(x) && fits(gate) && fits(up) && x.dim() >= 2 &&
         gate.dim() == 2 && gate.sizes() == up.sizes() && x.size(-1) == gate.size(1) &&
         gate.numel() > 0 && (is_one_product_on_host(x) || is_one_product_on_gpu(x, gate)) &&
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
