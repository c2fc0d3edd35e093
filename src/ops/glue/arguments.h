// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

namespace diffattn::ops {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The arguments that all operators share, in the order of their schemas.
struct ProblemArguments {
  Tensor q1, q2, k1, k2;
  Tensor lambda;
  std::optional<double> scale, scale2;
  bool causal = false;
  std::optional<int64_t> window;
  OptionalTensor mask, key_starts, key_lengths, cu_seqlens_q, cu_seqlens_k;
  bool align_to_key_lengths = false;  // decode

  bool packed() const { return cu_seqlens_q.has_value(); }
  double scale_or_default() const {
    return scale.value_or(1.0 / std::sqrt(static_cast<double>(q1.size(-1))));
  }
  double scale2_or_default() const { return scale2.value_or(scale_or_default()); }
};

struct AttentionArguments : ProblemArguments {
  Tensor v;
  OptionalTensor norm_weight;
  std::optional<double> norm_eps;
  double out_scale = 1.0;
};

/// What the forward gives: out [B, M, H, Dv]; lse1, lse2 [B, H, M] (packed [H, total]); o, o2 as
/// out (with 16 bits each row is followed by Dv bytes, on CUDA what its rounding lost), or empty
/// when they were not asked for.
struct ForwardResult {
  Tensor out, lse1, lse2, o, o2;
};

/// The forward once more, lse1 and lse2 being known: out and o as above.
struct RecomputeResult {
  Tensor out, o;
};

/// Gradients that were not wanted are empty.
struct BackwardResult {
  Tensor dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask;
};

/// Float sums for float, bfloat16 and float16; double for double.
inline torch::ScalarType accumulator_type(torch::ScalarType dtype) {
  return dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace diffattn::ops
