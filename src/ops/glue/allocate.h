// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"
#include "ops/glue/arguments.h"

/// Allocates the outputs of the operators from sizes alone, for real, meta and symbolic tensors.
namespace diffattn::ops {

/// Returns an empty tensor with the rows of q1, each `width` wide.
inline Tensor empty_like_rows(const Tensor& q1, const c10::SymInt& width, torch::ScalarType dtype) {
  auto sizes = q1.sym_sizes().vec();
  sizes.back() = width;
  return at::empty_symint(sizes, q1.options().dtype(dtype));
}

/// Returns an empty [B, H, M], packed [H, total].
inline Tensor empty_lse(const Tensor& q1) {
  auto sizes = q1.sym_sizes().slice(0, q1.dim() - 1).vec();
  std::swap(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
  return at::empty_symint(sizes, q1.options().dtype(accumulator_type(q1.scalar_type())));
}

/// Returns a tensor without elements, which stands for an absent result.
inline Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

/// Returns the width of a row of o and o2 in elements if both are saved. In a 16-bit type, room for
/// Dv bytes follows the Dv elements: CUDA kernels store the rounding errors there. The width is the
/// same on every device, since a meta tensor stands for any of them.
inline c10::SymInt saved_width(const AttentionArguments& a) {
  const c10::SymInt width = a.v.sym_size(-1);
  return a.q1.element_size() == 2 ? width + (width + 1) / 2 : width;
}

inline ForwardResult allocate_forward(const AttentionArguments& a, SavedOutputs save) {
  const auto rows = [&](const c10::SymInt& width) {
    return empty_like_rows(a.q1, width, a.q1.scalar_type());
  };
  const c10::SymInt width = a.v.sym_size(-1);
  const bool both = save == SavedOutputs::kBoth, any = both || save == SavedOutputs::kO;
  const c10::SymInt wide = both ? saved_width(a) : width;
  return {rows(width), empty_lse(a.q1), empty_lse(a.q1), any ? rows(wide) : nothing(a.q1),
          both ? rows(wide) : nothing(a.q1)};
}

inline RecomputeResult allocate_recompute(const AttentionArguments& a) {
  const auto dtype = a.q1.scalar_type();
  return {empty_like_rows(a.q1, a.v.sym_size(-1), dtype),
          empty_like_rows(a.q1, saved_width(a), dtype)};
}

/// Returns a contiguous tensor of `tensor`'s shape, or an empty one unless `wanted`.
inline Tensor allocate_gradient(bool wanted, const Tensor& tensor) {
  return wanted ? at::empty_symint(tensor.sym_sizes(), tensor.options()) : nothing(tensor);
}

/// Returns the gradient of a broadcast argument: zeros in the accumulator type of q1, so that an
/// element to which no row contributes is right.
inline Tensor allocate_broadcast_gradient(bool wanted, const OptionalTensor& tensor,
                                          const Tensor& q1) {
  const auto options = q1.options().dtype(accumulator_type(q1.scalar_type()));
  return wanted ? at::zeros_symint(tensor->sym_sizes(), options) : at::empty({0}, options);
}

inline BackwardResult allocate_input_gradients(const ProblemArguments& a, bool dq1, bool dq2,
                                               bool dk1, bool dk2, bool dlambda, bool dmask) {
  return {.dq1 = allocate_gradient(dq1, a.q1),
          .dq2 = allocate_gradient(dq2, a.q2),
          .dk1 = allocate_gradient(dk1, a.k1),
          .dk2 = allocate_gradient(dk2, a.k2),
          .dv = nothing(a.q1),
          .dlambda = allocate_broadcast_gradient(dlambda, a.lambda, a.q1),
          .dnorm_weight = nothing(a.q1),
          .dmask = allocate_broadcast_gradient(dmask, a.mask, a.q1)};
}

inline BackwardResult allocate_backward(const AttentionArguments& a, const Wanted& wanted) {
  BackwardResult result =
      allocate_input_gradients(a, wanted[0], wanted[1], wanted[2], wanted[3], wanted[5], wanted[7]);
  result.dv = allocate_gradient(wanted[4], a.v);
  result.dnorm_weight = allocate_broadcast_gradient(wanted[6], a.norm_weight, a.q1);
  return result;
}

inline Tensor allocate_stats(const ProblemArguments& a) {
  return empty_like_rows(a.q1, kStatCount, accumulator_type(a.q1.scalar_type()));
}

inline Tensor allocate_map(const ProblemArguments& a, const MapGrid& grid) {
  const c10::SymInt batch =
      a.packed() ? a.cu_seqlens_q->sym_numel() - 1 : c10::SymInt(a.q1.sym_size(0));
  return at::empty_symint({batch, a.q1.sym_size(-2), 3, grid.rows, grid.cols},
                          a.q1.options().dtype(accumulator_type(a.q1.scalar_type())));
}

}  // namespace diffattn::ops
