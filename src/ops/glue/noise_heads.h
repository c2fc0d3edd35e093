// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/arguments.h"
#include "ops/glue/checks.h"

/// Noise heads that several heads share: q2 [B, M, H2, D] with H2 < H. The forward and backward of
/// the CPU read them in place. Every other operator gets a copy of the noise head for each head.
namespace diffattn::ops {

/// True if heads share noise heads. The arguments need not be checked yet.
inline bool shares_noise_heads(const ProblemArguments& a) {
  return a.q1.defined() && a.q2.defined() && a.q1.dim() >= 3 && a.q2.dim() == a.q1.dim() &&
         a.q2.size(-2) != a.q1.size(-2);
}

/// True if, in addition, the mask may differ between heads of a noise head, so that maps 2 differ.
inline bool masks_noise_heads(const ProblemArguments& a) {
  return a.mask && a.mask->dim() >= 3 && a.mask->size(-3) != 1 && shares_noise_heads(a);
}

/// Returns the arguments with a copy of the noise head for each head.
template <class Arguments>
Arguments with_own_noise_heads(Arguments a) {
  const int64_t group = a.q1.size(-2) / a.q2.size(-2);
  a.q2 = a.q2.repeat_interleave(group, -2);
  return a;
}

/// An operator that repeats the noise heads if `needs` says so and then calls Compute.
template <auto Compute, auto needs = shares_noise_heads>
constexpr auto repeating = [](const auto& a, const auto&... rest) {
  if (!needs(a)) return Compute(a, rest...);
  check(a);
  return Compute(with_own_noise_heads(a), rest...);
};

/// The same for an operator that returns gradients: sums dq2 over the heads of each noise head.
template <auto Compute, auto needs = shares_noise_heads>
constexpr auto repeating_gradients = [](const Tensor& grad, const auto& a, const auto&... rest) {
  if (!needs(a)) return Compute(grad, a, rest...);
  check(a);
  BackwardResult result = Compute(grad, with_own_noise_heads(a), rest...);
  const bool wanted = result.dq2.dim() == a.q2.dim();
  if (wanted) result.dq2 = result.dq2.unflatten(-2, {a.q2.size(-2), -1}).sum(-2);
  return result;
};

}  // namespace diffattn::ops
