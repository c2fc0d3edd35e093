// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <optional>

#include "diffattn/kernels/params.h"

/// Arguments and results of the operators, as structs.
namespace diffattn::ops {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The arguments that all operators share, in the order of their schemas. window_left and
/// window_right are a schema's last arguments.
struct ProblemArguments {
  Tensor q1, q2, k1, k2;  // q2 may have fewer heads than q1 (noise_heads.h)
  Tensor lambda;
  std::optional<double> scale, scale2;
  bool causal = false;
  std::optional<int64_t> window;
  OptionalTensor mask, key_starts, key_lengths, cu_seqlens_q, cu_seqlens_k;
  int64_t window_left = -1, window_right = -1;  // -1: no bound
  bool align_to_key_lengths = false;            // decode
  /// decode: [B, P] pages of each sequence. k1, k2 and v are then pools, [pages, page size, Hkv,
  /// D].
  OptionalTensor block_table = {};

  bool packed() const { return cu_seqlens_q.has_value(); }
  bool paged() const { return block_table.has_value(); }
  /// Returns the window without `causal`.
  Window window_bounds() const {
    return window ? Window::last(*window) : Window::beside(window_left, window_right);
  }
  /// Returns N, unless packed.
  c10::SymInt sym_keys() const {
    return paged() ? block_table->sym_size(-1) * k1.sym_size(1) : k1.sym_size(1);
  }
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

/// Which outputs of the maps a forward saves for the backward. CUDA kernels read both, CPU kernels
/// only o.
enum class SavedOutputs : uint8_t { kNone, kO, kBoth };

/// Results of the forward: out [B, M, H, Dv]; lse1, lse2 [B, H, M] (packed [H, total]); o and o2
/// like out, or empty unless they are saved. If both are saved in a 16-bit type, Dv bytes follow
/// each row, in which CUDA kernels store the rounding errors.
struct ForwardResult {
  Tensor out, lse1, lse2, o, o2;
};

/// Results of a forward that starts from known lse1 and lse2; out and o as in ForwardResult.
struct RecomputeResult {
  Tensor out, o;
};

/// The results of the forward that the backward reads.
struct Saved {
  Tensor lse1, lse2, o, o2;
};

/// Gradients; empty ones were not wanted.
struct BackwardResult {
  Tensor dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask;
};

using Wanted = std::array<bool, 8>;       // for the members of BackwardResult, in order
using StatsWanted = std::array<bool, 6>;  // dq1, dq2, dk1, dk2, dlambda, dmask

/// The part of the maps to show, and the number of cells along each axis.
struct MapGrid {
  int64_t row_begin, row_end, col_begin, col_end, rows, cols;
};

/// Returns the type of sums: float64 for float64, else float32.
inline torch::ScalarType accumulator_type(torch::ScalarType dtype) {
  return dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace diffattn::ops
