// SPDX-License-Identifier: Apache-2.0
//
// Autograd. Forward and backward are separate operators, so that torch.compile and profilers see
// both. This file only connects them.

#include <algorithm>
#include <functional>

#include "diffattn/kernels/error.h"
#include "ops/dispatch/attention_checkpoint.h"
#include "ops/dispatch/cuda_fused.h"
#include "ops/dispatch/entry.h"

namespace diffattn::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool needs_gradient(std::initializer_list<OptionalTensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const OptionalTensor& tensor : tensors) {
    if (tensor && tensor->defined() && tensor->requires_grad()) return true;
  }
  return false;
}

/// Throws if a tensor has a forward-mode tangent, which the operators would silently drop.
void refuse_forward_mode(std::initializer_list<OptionalTensor> tensors) {
  for (const OptionalTensor& tensor : tensors) {
    if (!tensor || !tensor->defined() || !tensor->_fw_grad(/*level=*/0).defined()) continue;
    throw Error(
        "diffattn: attention has no forward-mode derivative (jvp): use reverse mode (backward)");
  }
}

OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

/// Returns `computed` in the type of its argument, or an undefined tensor if it is not wanted.
Tensor gradient(bool wanted, const Tensor& computed, const Tensor& argument) {
  return wanted ? computed.to(argument.scalar_type()) : Tensor();
}

/// Makes a gradient contiguous if its last stride is not 1, which the kernels require. The gradient
/// of a sum, for example, is expanded with stride 0.
Tensor with_unit_last_stride(const Tensor& grad) {
  const bool adjacent = grad.dim() == 0 || grad.sym_size(-1) <= 1 || grad.sym_stride(-1) == 1;
  return adjacent ? grad : grad.contiguous();
}

void save_options(AutogradContext* ctx, const ProblemArguments& a) {
  ctx->saved_data["scale"] = a.scale;
  ctx->saved_data["scale2"] = a.scale2;
  ctx->saved_data["causal"] = a.causal;
  ctx->saved_data["window"] = a.window;
  ctx->saved_data["window_left"] = a.window_left;
  ctx->saved_data["window_right"] = a.window_right;
}

void load_options(AutogradContext* ctx, ProblemArguments& a) {
  a.scale = ctx->saved_data["scale"].toOptional<double>();
  a.scale2 = ctx->saved_data["scale2"].toOptional<double>();
  a.causal = ctx->saved_data["causal"].toBool();
  a.window = ctx->saved_data["window"].toOptional<int64_t>();
  a.window_left = ctx->saved_data["window_left"].toInt();
  a.window_right = ctx->saved_data["window_right"].toInt();
}

/// Returns one flag for each differentiable argument: true if autograd needs its gradient. `saved`
/// begins with these arguments. Absent ones are undefined and have no edge in the graph.
template <class Flags>
Flags wanted_gradients(AutogradContext* ctx, const variable_list& saved) {
  Flags wanted{};
  for (size_t i = 0, edge = 0; i < wanted.size(); ++i) {
    if (saved[i].defined()) wanted[i] = ctx->needs_input_grad(edge++);
  }
  return wanted;
}

/// Returns the result of the forward that saved the checkpoint. Computes out and o if the
/// checkpoint lacks them.
ForwardResult restored_forward(const AttentionArguments& a, const AttentionCheckpoint& saved) {
  const Tensor lse1 = saved.lse1.detach(), lse2 = saved.lse2.detach(), o2 = saved.o2.detach();
  if (saved.out.defined()) return {saved.out.detach(), lse1, lse2, saved.o.detach(), o2};
  const RecomputeResult r = call::attention_recompute(a, lse1, lse2);
  return {r.out, lse1, lse2, r.o, o2};
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  /// The differentiable arguments are separate parameters, because autograd does not find tensors
  /// inside `a`.
  static variable_list forward(AutogradContext* ctx, const Variable& q1, const Variable& q2,
                               const Variable& k1, const Variable& k2, const Variable& v,
                               const Variable& lambda, const OptionalTensor& norm_weight,
                               const OptionalTensor& mask, const AttentionArguments& a,
                               SavedOutputs save, const AttentionCheckpoint* checkpoint) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const ForwardResult r =
        checkpoint ? restored_forward(a, *checkpoint) : call::attention_forward(a, save);
    ctx->save_for_backward({q1, q2, k1, k2, v, lambda, or_undefined(norm_weight),
                            or_undefined(mask), or_undefined(a.key_starts),
                            or_undefined(a.key_lengths), or_undefined(a.cu_seqlens_q),
                            or_undefined(a.cu_seqlens_k), r.lse1, r.lse2, r.o, r.o2});
    save_options(ctx, a);
    ctx->saved_data["norm_eps"] = a.norm_eps;
    ctx->saved_data["out_scale"] = a.out_scale;
    ctx->mark_non_differentiable({r.lse1, r.lse2, r.o, r.o2});
    ctx->set_materialize_grads(false);
    return {r.out, r.lse1, r.lse2, r.o, r.o2};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    constexpr int kArguments = 11;
    variable_list result(kArguments);
    if (!grads[0].defined()) return result;
    const variable_list s = ctx->get_saved_variables();
    AttentionArguments a;
    a.q1 = s[0], a.q2 = s[1], a.k1 = s[2], a.k2 = s[3], a.v = s[4], a.lambda = s[5];
    a.norm_weight = optional(s[6]), a.mask = optional(s[7]);
    a.key_starts = optional(s[8]), a.key_lengths = optional(s[9]);
    a.cu_seqlens_q = optional(s[10]), a.cu_seqlens_k = optional(s[11]);
    load_options(ctx, a);
    a.norm_eps = ctx->saved_data["norm_eps"].toOptional<double>();
    a.out_scale = ctx->saved_data["out_scale"].toDouble();

    const auto wanted = wanted_gradients<Wanted>(ctx, s);
    const BackwardResult r = call::attention_backward(with_unit_last_stride(grads[0]), a,
                                                      {s[12], s[13], s[14], s[15]}, wanted);
    const std::array computed{r.dq1, r.dq2, r.dk1, r.dk2, r.dv, r.dlambda, r.dnorm_weight, r.dmask};
    for (size_t i = 0; i < computed.size(); ++i) result[i] = gradient(wanted[i], computed[i], s[i]);
    return result;
  }
};

class StatsFunction : public torch::autograd::Function<StatsFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Variable& q1, const Variable& q2,
                        const Variable& k1, const Variable& k2, const Variable& lambda,
                        const OptionalTensor& mask, const ProblemArguments& a,
                        double sparse_threshold) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({q1, q2, k1, k2, lambda, or_undefined(mask), or_undefined(a.key_starts),
                            or_undefined(a.key_lengths), or_undefined(a.cu_seqlens_q),
                            or_undefined(a.cu_seqlens_k)});
    save_options(ctx, a);
    return call::attention_stats(a, sparse_threshold);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    constexpr int kArguments = 8;
    const variable_list s = ctx->get_saved_variables();
    ProblemArguments a;
    a.q1 = s[0], a.q2 = s[1], a.k1 = s[2], a.k2 = s[3], a.lambda = s[4], a.mask = optional(s[5]);
    a.key_starts = optional(s[6]), a.key_lengths = optional(s[7]);
    a.cu_seqlens_q = optional(s[8]), a.cu_seqlens_k = optional(s[9]);
    load_options(ctx, a);
    const auto wanted = wanted_gradients<StatsWanted>(ctx, s);
    const BackwardResult r =
        call::attention_stats_backward(with_unit_last_stride(grads[0]), a, wanted);
    variable_list result(kArguments);
    const std::array computed{r.dq1, r.dq2, r.dk1, r.dk2, r.dlambda, r.dmask};
    for (size_t i = 0; i < computed.size(); ++i) result[i] = gradient(wanted[i], computed[i], s[i]);
    return result;
  }
};

/// A graph node whose backward throws, because attention has no second derivative.
class NoSecondDerivative : public torch::autograd::Function<NoSecondDerivative> {
 public:
  static variable_list forward(AutogradContext*, at::TensorList,
                               const std::function<variable_list()>& compute) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return compute();
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    throw Error(
        "diffattn: attention has no second derivative (double backward): its gradients cannot be "
        "differentiated again");
  }
};

bool attention_needs_gradient(const AttentionArguments& a) {
  return needs_gradient({a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask});
}

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  refuse_forward_mode({a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask});
  if (!attention_needs_gradient(a)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call::attention_forward(a, save);
  }
  const variable_list r = AttentionFunction::apply(
      a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask, a,
      std::max(save, outputs_of_backward(a)), static_cast<const AttentionCheckpoint*>(nullptr));
  return {r[0], r[1], r[2], r[3], r[4]};
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        Wanted wanted) {
  const auto compute = [&] {
    const BackwardResult r = call::attention_backward(dout, a, saved, wanted);
    return variable_list{r.dq1, r.dq2, r.dk1, r.dk2, r.dv, r.dlambda, r.dnorm_weight, r.dmask};
  };
  variable_list r;
  if (needs_gradient({dout, a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask})) {
    variable_list inputs{dout, a.q1, a.q2, a.k1, a.k2, a.v, a.lambda};
    if (a.norm_weight) inputs.push_back(*a.norm_weight);
    if (a.mask) inputs.push_back(*a.mask);
    r = NoSecondDerivative::apply(at::TensorList(inputs), compute);
  } else {
    const at::AutoDispatchBelowADInplaceOrView below;
    r = compute();
  }
  return {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]};
}

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  refuse_forward_mode({a.q1, a.q2, a.k1, a.k2, a.lambda, a.mask});
  if (!needs_gradient({a.q1, a.q2, a.k1, a.k2, a.lambda, a.mask})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call::attention_stats(a, sparse_threshold);
  }
  return StatsFunction::apply(a.q1, a.q2, a.k1, a.k2, a.lambda, a.mask, a, sparse_threshold);
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a, StatsWanted wanted) {
  const auto compute = [&] {
    const BackwardResult r = call::attention_stats_backward(dstats, a, wanted);
    return variable_list{r.dq1, r.dq2, r.dk1, r.dk2, r.dlambda, r.dmask};
  };
  variable_list r;
  if (needs_gradient({dstats, a.q1, a.q2, a.k1, a.k2, a.lambda, a.mask})) {
    variable_list inputs{dstats, a.q1, a.q2, a.k1, a.k2, a.lambda};
    if (a.mask) inputs.push_back(*a.mask);
    r = NoSecondDerivative::apply(at::TensorList(inputs), compute);
  } else {
    const at::AutoDispatchBelowADInplaceOrView below;
    r = compute();
  }
  return {.dq1 = r[0],
          .dq2 = r[1],
          .dk1 = r[2],
          .dk2 = r[3],
          .dv = {},
          .dlambda = r[4],
          .dnorm_weight = {},
          .dmask = r[5]};
}

// recompute, decode and map are not differentiable: their results never require a gradient.
RecomputeResult recompute(const AttentionArguments& a, const Tensor& lse1, const Tensor& lse2) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return call::attention_recompute(a, lse1, lse2);
}

Tensor decode(const AttentionArguments& a) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return call::decode(a);
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return call::attention_map(a, grid);
}

/// Returns the first result of `attention_forward`, without lse1, lse2, o and o2.
Tensor attention(const AttentionArguments& a) {
  return call::attention_forward(a, SavedOutputs::kNone).out;
}

}  // namespace

/// Without them the backward would compute them a second time: o and o2 on CUDA, and on a CPU the O
/// that the head norm differentiates. Kernels for float64 recompute what they need. Reads only
/// properties that fake tensors have too.
SavedOutputs outputs_of_backward(const AttentionArguments& a) {
  if (a.q1.scalar_type() == torch::kFloat64) return SavedOutputs::kNone;
  if (cuda_fused() != nullptr && a.q1.is_cuda()) return SavedOutputs::kBoth;
  return a.q1.is_cpu() && a.norm_eps ? SavedOutputs::kO : SavedOutputs::kNone;
}

Tensor restored_attention(const AttentionArguments& a, const AttentionCheckpoint& checkpoint) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  refuse_forward_mode({a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask});
  if (!attention_needs_gradient(a)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return restored_forward(a, checkpoint).out;
  }
  return AttentionFunction::apply(a.q1, a.q2, a.k1, a.k2, a.v, a.lambda, a.norm_weight, a.mask, a,
                                  SavedOutputs::kBoth, &checkpoint)[0];
}

TORCH_LIBRARY_IMPL(diffattn, CompositeImplicitAutograd, m) {
  m.impl("attention", entry::attention<attention>);
}

TORCH_LIBRARY_IMPL(diffattn, Autograd, m) {
  entry::implement<forward, recompute, backward, decode, stats, stats_backward, map>(m);
}

}  // namespace diffattn::ops
