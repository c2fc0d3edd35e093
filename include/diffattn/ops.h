// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/kernels/error.h"
#include "diffattn/kernels/params.h"

namespace diffattn {

/// Options of `attention`; the defaults are a full (not causal) map without head norm.
struct AttentionOptions {
  /// Multiplies the scores of map 1. Default: head_dim ^ -1/2.
  TORCH_ARG(std::optional<double>, scale);
  /// Multiplies the scores of map 2. Default: `scale`.
  TORCH_ARG(std::optional<double>, scale2);
  /// Row m sees column n only if n <= m + N - M: the last row sees the last column.
  TORCH_ARG(bool, causal) = false;
  /// Row m sees only the last `window` columns up to m + N - M (implies causal).
  TORCH_ARG(std::optional<int64_t>, window);
  /// Boolean (true = may see) or additive; broadcasts to [B, H, M, N]; combines with the rest.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// [B] integers: columns before it are padding (left padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_starts);
  /// [B] integers: columns from it on are padding (right padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_lengths);
  /// [S + 1] integers each: tensors are packed [total, H, D], S sequences one after another.
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_q);
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_k);
  /// RMS norm of every head's output with this eps; no head norm without it.
  TORCH_ARG(std::optional<double>, norm_eps);
  /// [Dv]: weight of the head norm. Default: ones.
  TORCH_ARG(std::optional<torch::Tensor>, norm_weight);
  /// Multiplies the output: 1 - lambda_init in the paper.
  TORCH_ARG(double, out_scale) = 1.0;
};

/// Differential attention, out = (softmax(scale q1 k1^T) - lambda softmax(scale2 q2 k2^T)) v, with
/// gradients for every floating-point argument (once: double backward is refused).
///
/// q1, q2 [B, M, H, D]; k1, k2 [B, N, Hkv, D] (may be one tensor); v [B, N, Hkv, Dv]; H a multiple
/// of Hkv; any strides with a unit last stride, nothing is copied. float32, float64, bfloat16 or
/// float16, all the same; sums, softmax and the subtraction are in float32 (float64), with one
/// rounding at the end. lambda: one number, [H] or [B, M, H] (packed: [total, H]), any floating
/// type, any sign. Returns [B, M, H, Dv]. A row that may see nothing gives 0 and zero gradients.
/// Throws `diffattn::Error` naming the argument, what was expected and what came.
torch::Tensor attention(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                        const torch::Tensor& k2, const torch::Tensor& v,
                        const torch::Tensor& lambda, const AttentionOptions& options = {});

/// The newest M queries of each sequence against its cache: `attention` with causal rows aligned to
/// `key_lengths` (the filled part of the cache; default all of it). No gradients.
torch::Tensor decode(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                     const torch::Tensor& k2, const torch::Tensor& v, const torch::Tensor& lambda,
                     const AttentionOptions& options = {});

/// Statistics of every row of the map, [B, M, H, kStatCount] (`enum Stat`), in O(N) memory, with
/// gradients for q1, q2, k1, k2, lambda and an additive mask. Head norm options are not used.
torch::Tensor attention_stats(const torch::Tensor& q1, const torch::Tensor& q2,
                              const torch::Tensor& k1, const torch::Tensor& k2,
                              const torch::Tensor& lambda, const AttentionOptions& options = {},
                              double sparse_threshold = 1e-3);

/// A part of the maps in a grid of cells; a cell shows its entry of largest magnitude.
struct MapOptions {
  TORCH_ARG(int64_t, row_begin) = 0;
  TORCH_ARG(std::optional<int64_t>, row_end);  // default: M
  TORCH_ARG(int64_t, col_begin) = 0;
  TORCH_ARG(std::optional<int64_t>, col_end);  // default: N
  TORCH_ARG(std::optional<int64_t>, rows);     // default: one cell per row
  TORCH_ARG(std::optional<int64_t>, cols);     // default: one cell per column
};

/// softmax1, softmax2 and their difference, [B, H, 3, rows, cols]. No gradients.
torch::Tensor attention_map(const torch::Tensor& q1, const torch::Tensor& q2,
                            const torch::Tensor& k1, const torch::Tensor& k2,
                            const torch::Tensor& lambda, const AttentionOptions& options = {},
                            const MapOptions& map = {});

/// A backend as `diffattn info` shows it.
struct BackendInfo {
  std::string name;
  std::string device;  // "cpu" or "cuda"
  std::string description;
  bool available = false;
};

/// Every backend of this build, best first within its device.
std::vector<BackendInfo> backends();

/// The name of the backend that would compute tensors of this type on this device now.
std::string backend_for(torch::Device device, torch::ScalarType dtype);

/// Allows only the named backend and those after it in the list, for tests and comparisons; empty:
/// all. The environment variable DIFFATTN_BACKEND sets the start value. Throws for unknown names.
void limit_backend(const std::string& name);

/// What activation checkpointing keeps of an attention call between the forward pass and its second
/// run in the backward pass.
enum class KeepAttention {
  /// Nothing: the second run computes everything.
  kNothing,
  /// lse1, lse2 and map 2's output where a kernel can use them, else nothing. The second run then
  /// does 2/3 (Dv = 2 D) or 3/4 (Dv = D) of the work. Such kernels exist for sm_90 with 16-bit
  /// types, D 64 or 128, Dv up to 128 and no mask tensor.
  kSums,
  /// Everything that the backward pass reads. The second run computes nothing, and the gradients
  /// have the same bits as without checkpointing.
  kResults,
};

}  // namespace diffattn
