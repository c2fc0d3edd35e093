// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// The attention of path i to its bank of (i + 1) N keys. All schedules compute the same function.
enum class BankSchedule {
  kNaive,   // one softmax over all scores, [B, H, N, (i + 1) N] in memory
  kFlash1,  // one fused call per block of 256 rows over the concatenated bank, (token, path) order;
            // masks of 256 (i + 1) N bytes
  kFlash2,  // one fused call per path of the bank, no copies and no masks, merged by log-sum-exp
};

/// The function from path weights w to lambda [P].
enum class PathWeights {
  kLayerNorm,         // LayerNorm(sigmoid(w)) over paths; initial gain 1, offset 1 / P, so a mean
  kLayerNormLiteral,  // without gain and offset: sums to 0, and is 0 if all w are equal (warns)
  kSigmoid,
  kSoftmax,
};

struct IntrospectiveAttentionOptions {
  IntrospectiveAttentionOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}
  TORCH_ARG(int64_t, embed_dim);
  TORCH_ARG(int64_t, num_heads);
  /// Default: num_heads.
  TORCH_ARG(std::optional<int64_t>, num_kv_heads);
  /// Number of paths P, at least 2.
  TORCH_ARG(int64_t, paths) = 3;
  TORCH_ARG(BankSchedule, schedule) = BankSchedule::kFlash2;
  TORCH_ARG(PathWeights, path_weights) = PathWeights::kLayerNorm;
  /// Normalises each head's output separately instead of all heads together.
  TORCH_ARG(bool, per_head_norm) = false;
  TORCH_ARG(double, norm_eps) = 1e-5;
  TORCH_ARG(bool, out_proj) = true;
  TORCH_ARG(bool, causal) = true;
  /// Each token sees only the last `window` tokens, in every path; causal attention only.
  TORCH_ARG(std::optional<int64_t>, window);
  TORCH_ARG(RotaryOptions, rotary) = RotaryOptions().style(RotaryStyle::kHalfSplit);
};

/// Computes attention with one softmax over the keys of all paths. q is [B, M, H, D]; path i has
/// ks[i] [B, N, Hkv, D] and vs[i] [B, N, Hkv, Dv]. `options` holds the masks, which are the same
/// for every path. Packed tensors are [total, H, D]. Returns [B, M, H, Dv], with gradients.
torch::Tensor bank_attention(BankSchedule schedule, const torch::Tensor& q,
                             const std::vector<torch::Tensor>& ks,
                             const std::vector<torch::Tensor>& vs, const AttentionOptions& options);

/// Returns the arguments of one `attention` call that computes the same as `bank_attention`. Its
/// keys are in (token, path) order, and its mask takes (i + 1) M N bytes. Not for packed sequences.
HeadTensors bank_call(const torch::Tensor& q, const std::vector<torch::Tensor>& ks,
                      const std::vector<torch::Tensor>& vs, const AttentionOptions& options);

/// The projections of one path and the norm of its result.
class IntrospectivePathImpl : public torch::nn::Module {
 public:
  explicit IntrospectivePathImpl(const IntrospectiveAttentionOptions& options);
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr};
  RMSNorm layer_norm{nullptr};
};
TORCH_MODULE(IntrospectivePath);

/// Introspective attention: P paths. Path i attends to the keys and values of paths 0 ... i in one
/// softmax,
///
///   A_i = norm_i(softmax(Q_i [K_0 .. K_i]^T / sqrt(d)) [V_0 .. V_i])
///   y   = out_proj(norm(sum_i lambda_i A_i + alpha x))
///
/// Keys of every path have their token's position, for the rotary embedding and for the mask. The
/// layer adds x itself. A cache holds keys and values of path i in slots 2i and 2i + 1. Traces have
/// one entry per path (`bank_call`); packed sequences cannot be traced.
class IntrospectiveAttentionImpl : public AttentionLayer {
 public:
  /// Throws `diffattn::Error` naming an option out of range.
  explicit IntrospectiveAttentionImpl(const IntrospectiveAttentionOptions& options);

  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;
  torch::Tensor forward(const torch::Tensor& x);
  bool adds_residual() const override { return true; }
  std::optional<RotaryTable> angles(const AttentionInput& input) override;

  /// [P]
  torch::Tensor lambda() const;

  IntrospectiveAttentionOptions options;
  std::vector<IntrospectivePath> paths;            // P_layers.i
  std::vector<torch::Tensor> lambda_weights;       // lambda_weights.i [1], initially 0
  torch::Tensor path_norm_gain, path_norm_offset;  // [P], for PathWeights::kLayerNorm
  torch::Tensor alpha;                             // [1], initially 1
  RMSNorm final_layer_norm{nullptr};
  torch::nn::Linear out_proj{nullptr};

 private:
  int64_t head_dim_, kv_heads_;
  Rotary rotary_{nullptr};
};
TORCH_MODULE(IntrospectiveAttention);

}  // namespace diffattn::nn
