// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "diffattn/kernels/error.h"
#include "diffattn/kernels/params.h"

namespace diffattn {

/// Options of `attention`. The defaults give a full (not causal) map without head norm.
struct AttentionOptions {
  /// Multiplies the scores of map 1. Default: head_dim ^ -1/2.
  TORCH_ARG(std::optional<double>, scale);
  /// Multiplies the scores of map 2. Default: `scale`.
  TORCH_ARG(std::optional<double>, scale2);
  /// Row m sees column n only if n <= m + N - M. The last row sees the last column.
  TORCH_ARG(bool, causal) = false;
  /// Boolean (true = visible) or additive; broadcasts to [B, H, M, N]. Combines with the other
  /// masks.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// [B] integers: columns n < key_starts[b] are padding (left padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_starts);
  /// [B] integers: columns n >= key_lengths[b] are padding (right padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_lengths);
  /// [S + 1] integers each. If given, tensors are packed [total, H, D]: sequence s is rows
  /// [cu_seqlens[s], cu_seqlens[s + 1]).
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_q);
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_k);
  /// Eps of the head norm (RMSNorm of every head's output). Default: no head norm.
  TORCH_ARG(std::optional<double>, norm_eps);
  /// [Dv]: weight of the head norm. Default: ones.
  TORCH_ARG(std::optional<torch::Tensor>, norm_weight);
  /// Multiplies the output: 1 - lambda_init in the paper.
  TORCH_ARG(double, out_scale) = 1.0;

 public:
  /// Row m sees only the last `columns` columns up to m' = m + N - M (implies causal).
  AttentionOptions& window(const std::optional<int64_t>& columns) {
    window_ = columns, window_left_ = window_right_ = -1;
    return *this;
  }
  /// Row m sees the columns m' - left <= n <= m' + right; -1 for no bound. `causal` still hides
  /// the columns after m'.
  AttentionOptions& window(int64_t left, int64_t right) {
    window_.reset(), window_left_ = left, window_right_ = right;
    return *this;
  }
  const std::optional<int64_t>& window() const { return window_; }
  int64_t window_left() const { return window_left_; }
  int64_t window_right() const { return window_right_; }
  /// Returns the bounds that `causal` and the window set together.
  Window bounds() const {
    const Window window =
        window_ ? Window::last(*window_) : Window::beside(window_left_, window_right_);
    return causal_ ? window.causal() : window;
  }

 private:
  std::optional<int64_t> window_;
  int64_t window_left_ = -1, window_right_ = -1;
};

/// Computes differential attention,
/// out = (softmax(scale q1 k1^T) - lambda softmax(scale2 q2 k2^T)) v, with gradients for every
/// floating-point argument. Second derivatives (double backward) throw.
///
/// q1 [B, M, H, D]; q2 [B, M, H2, D]; k1, k2 [B, N, Hkv, D] (may be one tensor); v [B, N, Hkv, Dv];
/// H is a multiple of Hkv. H2 is H, or a divisor of H and a multiple of Hkv: then H / H2
/// consecutive heads share a noise head (grouped attention), as if q2 were repeated for each. The
/// five tensors have one type, float32, float64, bfloat16 or float16, and any strides whose last is
/// 1. The operator copies none of them, except a shared q2 on a GPU or if the mask differs between
/// heads. Sums, softmax and the subtraction are in float32 (float64 for float64), with one rounding
/// at the end. lambda: one number, [H] or [B, M, H] (packed: [total, H]), any floating type, any
/// sign. Returns [B, M, H, Dv]. A row that sees no column gives 0 and zero gradients. Throws
/// `diffattn::Error` naming the argument, the expected value and the actual one.
torch::Tensor attention(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                        const torch::Tensor& k2, const torch::Tensor& v,
                        const torch::Tensor& lambda, const AttentionOptions& options = {});

/// Computes the attention of the newest M queries of each sequence to its KV cache: causal
/// `attention` with rows aligned to `key_lengths` (the filled part of the cache; default: all of
/// it). No gradients.
///
/// With `block_table` [B, P], of integers, the cache is paged: k1, k2 and v are pools of pages,
/// [pages, page size, Hkv, D], and row n of sequence b is row n % page size of page
/// block_table[b, n / page size]. N is P times the page size, a multiple of 16 (best 64). It needs
/// `key_lengths`. Results have the bits of a contiguous cache. On a GPU the caller must make sure
/// that the entries are pages; entries behind the last key are never read.
torch::Tensor decode(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                     const torch::Tensor& k2, const torch::Tensor& v, const torch::Tensor& lambda,
                     const AttentionOptions& options = {},
                     const std::optional<torch::Tensor>& block_table = {});

/// Computes statistics of every row of the map, [B, M, H, kStatCount] (`enum Stat`), in O(N)
/// memory, with gradients for q1, q2, k1, k2, lambda and an additive mask. Ignores the head norm
/// options.
torch::Tensor attention_stats(const torch::Tensor& q1, const torch::Tensor& q2,
                              const torch::Tensor& k1, const torch::Tensor& k2,
                              const torch::Tensor& lambda, const AttentionOptions& options = {},
                              double sparse_threshold = 1e-3);

/// The part of the maps to show and its grid of cells. A cell shows its entry of largest magnitude.
struct MapOptions {
  TORCH_ARG(int64_t, row_begin) = 0;
  TORCH_ARG(std::optional<int64_t>, row_end);  // default: M
  TORCH_ARG(int64_t, col_begin) = 0;
  TORCH_ARG(std::optional<int64_t>, col_end);  // default: N
  TORCH_ARG(std::optional<int64_t>, rows);     // default: one cell per row
  TORCH_ARG(std::optional<int64_t>, cols);     // default: one cell per column
};

/// Computes the maps p1 = softmax1, p2 = softmax2 and p1 - lambda p2, [B, H, 3, rows, cols]. No
/// gradients.
torch::Tensor attention_map(const torch::Tensor& q1, const torch::Tensor& q2,
                            const torch::Tensor& k1, const torch::Tensor& k2,
                            const torch::Tensor& lambda, const AttentionOptions& options = {},
                            const MapOptions& map = {});

/// A line of `diffattn info`.
struct BackendInfo {
  std::string name;
  std::string device;  // "cpu" or "cuda"
  std::string description;
  bool available = false;
};

/// Returns every backend of this build, best first within its device.
std::vector<BackendInfo> backends();

/// Returns the name of the backend that computes tensors of this type on this device now.
std::string backend_for(torch::Device device, torch::ScalarType dtype);

/// Allows only the named backend and those after it in the list, for tests and comparisons. An
/// empty name allows all. The environment variable DIFFATTN_BACKEND sets the initial limit. Throws
/// for unknown names.
void limit_backend(const std::string& name);

/// The tensors of an attention call that activation checkpointing saves. The backward pass runs the
/// call a second time and reads them.
enum class KeepAttention {
  /// No tensor: the second run computes everything.
  kNothing,
  /// lse1, lse2 and map 2's output if a kernel can use them, else no tensor. The second run then
  /// does 2/3 (Dv = 2 D) or 3/4 (Dv = D) of the work. Such kernels exist for sm_90 with 16-bit
  /// types, D 64 or 128, Dv up to 128 and no mask tensor.
  kSums,
  /// All tensors that the backward pass reads. The second run computes nothing, and the gradients
  /// have the same bits as without checkpointing.
  kResults,
};

}  // namespace diffattn
