// SPDX-License-Identifier: Apache-2.0
#include "ops/composed/composed.h"

#include <array>
#include <vector>

#include "ops/glue/allocate.h"

namespace diffattn::ops::composed {
namespace {

using Gradients = std::vector<Tensor>;

/// Returns the gradients of `compute(leaves)` at `grad`, where the leaves are copies of `inputs`
/// that require a gradient. Undefined inputs stay undefined. Operators run below autograd, so we
/// restore the default dispatch keys for this computation.
template <class Compute>
Gradients gradients(const std::vector<Tensor>& inputs, const Tensor& grad, Compute compute) {
  const c10::impl::ForceDispatchKeyGuard above(c10::default_included_set,
                                               c10::default_excluded_set);
  const torch::AutoGradMode enable(true);
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.defined() ? input.detach().requires_grad_(true) : Tensor());
    if (input.defined()) wanted.push_back(leaves.back());
  }
  const Tensor out = compute(leaves);
  if (wanted.empty() || !out.requires_grad()) return Gradients(inputs.size());
  const auto found = torch::autograd::grad({out}, wanted, {grad}, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  Gradients result(inputs.size());
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) result[i] = found[next++];
  }
  return result;
}

/// Copies a gradient of autograd to a result, which has the shape and type of the operator.
void fill(const Tensor& result, bool wanted, const Tensor& gradient) {
  if (!wanted) return;
  gradient.defined() ? result.copy_(gradient) : result.zero_();
}

Tensor pick(bool wanted, const OptionalTensor& tensor) { return wanted ? *tensor : Tensor(); }

/// Replaces the argument by the leaf, if there is one.
void replace(Tensor& argument, const Tensor& leaf) {
  if (leaf.defined()) argument = leaf;
}
void replace(OptionalTensor& argument, const Tensor& leaf) {
  if (leaf.defined()) argument = leaf;
}

}  // namespace

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  const torch::NoGradGuard no_grad;
  const ForwardResult result = allocate_forward(a, save);
  const ForwardResult rows = attention_rows(a);
  result.out.copy_(rows.out);
  result.lse1.copy_(rows.lse1);
  result.lse2.copy_(rows.lse2);
  const auto store = [](const Tensor& to, const Tensor& from) {
    const int64_t width = from.size(-1);
    to.narrow(-1, 0, width).copy_(from);
    to.narrow(-1, width, to.size(-1) - width).zero_();
  };
  if (save != SavedOutputs::kNone) store(result.o, rows.o);
  if (save == SavedOutputs::kBoth) store(result.o2, rows.o2);
  return result;
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, Wanted wanted) {
  const auto grads =
      gradients({pick(wanted[0], a.q1), pick(wanted[1], a.q2), pick(wanted[2], a.k1),
                 pick(wanted[3], a.k2), pick(wanted[4], a.v), pick(wanted[5], a.lambda),
                 pick(wanted[6], a.norm_weight), pick(wanted[7], a.mask)},
                dout, [&](const std::vector<Tensor>& leaves) {
                  AttentionArguments with = a;
                  replace(with.q1, leaves[0]);
                  replace(with.q2, leaves[1]);
                  replace(with.k1, leaves[2]);
                  replace(with.k2, leaves[3]);
                  replace(with.v, leaves[4]);
                  replace(with.lambda, leaves[5]);
                  replace(with.norm_weight, leaves[6]);
                  replace(with.mask, leaves[7]);
                  return attention_rows(with).out.to(dout.scalar_type());
                });
  const BackwardResult result = allocate_backward(a, wanted);
  const std::array results{result.dq1, result.dq2,     result.dk1,          result.dk2,
                           result.dv,  result.dlambda, result.dnorm_weight, result.dmask};
  for (size_t i = 0; i < results.size(); ++i) fill(results[i], wanted[i], grads[i]);
  return result;
}

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  const torch::NoGradGuard no_grad;
  return stats_rows(a, sparse_threshold).to(accumulator_type(a.q1.scalar_type())).contiguous();
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a, StatsWanted wanted) {
  const auto grads =
      gradients({pick(wanted[0], a.q1), pick(wanted[1], a.q2), pick(wanted[2], a.k1),
                 pick(wanted[3], a.k2), pick(wanted[4], a.lambda), pick(wanted[5], a.mask)},
                dstats, [&](const std::vector<Tensor>& leaves) {
                  ProblemArguments with = a;
                  replace(with.q1, leaves[0]);
                  replace(with.q2, leaves[1]);
                  replace(with.k1, leaves[2]);
                  replace(with.k2, leaves[3]);
                  replace(with.lambda, leaves[4]);
                  replace(with.mask, leaves[5]);
                  return stats_rows(with, /*sparse_threshold=*/0.0);
                });
  const BackwardResult result =
      allocate_input_gradients(a, wanted[0], wanted[1], wanted[2], wanted[3], wanted[4], wanted[5]);
  const std::array results{result.dq1, result.dq2,     result.dk1,
                           result.dk2, result.dlambda, result.dmask};
  for (size_t i = 0; i < results.size(); ++i) fill(results[i], wanted[i], grads[i]);
  return result;
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  const torch::NoGradGuard no_grad;
  const Tensor result = allocate_map(a, grid).zero_();
  for (int64_t b = 0; b < result.size(0); ++b) result[b].copy_(map_cells(a, b, grid));
  return result;
}

}  // namespace diffattn::ops::composed
