// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/add_rms_norm.h"

#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMaxWidth = 8192;  // of the kernel

Tensor dense(const Tensor& x) {
  const Tensor whole = x.contiguous();
  return ops::is_aligned(whole) ? whole : whole.clone();
}

class AddRmsNorm : public torch::autograd::Function<AddRmsNorm> {
 public:
  /// Returns {h, y}, or {y} without a branch.
  static variable_list forward(AutogradContext* ctx, const Tensor& given,
                               const std::optional<Tensor>& branch, const Tensor& weight,
                               double eps, torch::ScalarType type) {
    const Tensor x = dense(given), w = dense(weight);
    const Tensor b = branch ? dense(*branch) : Tensor();
    const Tensor h = branch ? torch::empty_like(x) : Tensor();
    const Tensor y = torch::empty(x.sizes(), x.options().dtype(type));
    const Tensor rstd = torch::empty({x.numel() / x.size(-1)}, w.options());
    ops::cuda_layers()->add_rms_norm(x, b, w, eps, h, y, rstd);
    ctx->save_for_backward({branch ? h : x, w, rstd});
    ctx->saved_data["branch_type"] = branch ? branch->scalar_type() : torch::kFloat32;
    ctx->set_materialize_grads(false);
    return branch ? variable_list{h, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("add_rms_norm");
    const bool has_branch = grads.size() == 2;
    const Tensor dh = has_branch ? grads.front() : Tensor(), dy = grads.back();
    const auto saved = ctx->get_saved_variables();
    const Tensor &h = saved[0], &weight = saved[1], &rstd = saved[2];
    Tensor dx = dh, dweight;
    if (dy.defined()) {
      dx = torch::empty_like(h);
      dweight = ops::cuda_layers()->add_rms_norm_backward(
          dense(dy), dh.defined() ? dense(dh) : Tensor(), h, weight, rstd, dx);
    }
    Tensor dbranch;
    if (has_branch && dx.defined()) dbranch = dx.to(ctx->saved_data["branch_type"].toScalarType());
    return {dx, dbranch, dweight, Tensor(), Tensor()};
  }
};

}  // namespace

bool takes_add_rms_norm(const Tensor& x, const Tensor& branch, const Tensor& weight,
                        torch::ScalarType type) {
  const auto stream = x.scalar_type();
  const bool types = stream == type || (stream == torch::kFloat32 && type == torch::kBFloat16);
  return ops::is_for_gpu(x) && types && x.size(-1) % 8 == 0 && x.size(-1) <= kMaxWidth &&
         weight.defined() && weight.scalar_type() == torch::kFloat32 && weight.dim() == 1 &&
         weight.size(0) == x.size(-1) && weight.device() == x.device() &&
         (!branch.defined() || (branch.scalar_type() == type && branch.sizes() == x.sizes() &&
                                branch.device() == x.device()));
}

NormedSum add_rms_norm(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps,
                       torch::ScalarType type) {
  TORCH_CHECK(takes_add_rms_norm(x, branch, weight, type),
              "add_rms_norm: expected arguments that takes_add_rms_norm accepts");
  const variable_list results = AddRmsNorm::apply(
      x, branch.defined() ? std::optional(branch) : std::nullopt, weight, eps, type);
  return {branch.defined() ? results.front() : x, results.back()};
}

}  // namespace diffattn
