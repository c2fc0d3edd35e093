// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::nn {

/// x -> x V U^T, a matrix of rank `rank`: `down` is V^T [rank, in], `up` is U [out, rank].
class LowRankImpl : public torch::nn::Module {
 public:
  LowRankImpl(int64_t in, int64_t out, int64_t rank);
  torch::Tensor forward(const torch::Tensor& x) { return up(down(x)); }

  torch::nn::Linear down{nullptr}, up{nullptr};
};
TORCH_MODULE(LowRank);

/// Shared-DIFF: the two maps share a base projection and differ by low-rank matrices,
/// W_Q1 = W_Q + U1 V1^T, W_Q2 = W_Q + U2 V2^T, and likewise for keys. Everything else is as in V1.
///
/// Parameters: q_proj.weight [H d, E], k_proj.weight [Hkv d, E] (half of V1's), and
/// {q1,q2,k1,k2}_delta.{down,up}.weight; the others have V1's names.
class SharedDiffAttentionImpl : public MultiheadDiffAttentionImpl {
 public:
  /// Throws for kinds other than V1, for a merged matrix of q, k and v, and for a rank outside
  /// [1, min(E, Hkv d)].
  SharedDiffAttentionImpl(const MultiheadDiffAttentionOptions& options, int64_t rank);

  const int64_t rank;
  LowRank q1_delta{nullptr}, q2_delta{nullptr}, k1_delta{nullptr}, k2_delta{nullptr};

 protected:
  bool has_linear_projections() const override { return false; }
  torch::Tensor query(const torch::Tensor& x) override;
  KeysAndValues project_keys_and_values(const torch::Tensor& source) override;

 private:
  /// Joins the heads of both maps, [..., count d] each, to [..., 2 count, d] in the layer's layout.
  torch::Tensor arrange(const torch::Tensor& first, const torch::Tensor& second,
                        int64_t count) const;
};
TORCH_MODULE(SharedDiffAttention);

}  // namespace diffattn::nn
