// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/token_feature_enhancer.h"

#include <vector>

#include "nn/parts/map_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Computes m_i = mean over heads of max_j A_ij.
Tensor query_weights(const HeadTensors& h) {
  const Tensor stats = attention_stats(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options);
  return stats.select(-1, kStatMax).mean(-1, /*keepdim=*/true);  // [B, M, H] -> [B, M, 1]
}

/// Computes m_j = mean over heads of sum_i A_ij for tensors that are not packed.
Tensor key_weights(const HeadTensors& h) {
  const Tensor real = real_rows(h);  // [B, M]
  const Tensor sums = over_row_blocks(h, Join::kSum, [real](const RowBlock& block) {
    if (!real.defined()) return block.map.sum(2);  // [B, H, N]
    const Tensor rows =
        real.narrow(1, block.begin, block.map.size(2)).view({real.size(0), 1, -1, 1});
    return block.map.masked_fill(~rows, 0.0).sum(2);
  });
  return sums.mean(1).unsqueeze(-1);  // [B, N, 1]
}

void check_bidirectional(const HeadTensors& h) {
  if (h.options.bounds().right <= 0) {
    throw_argument_error("weight", "'query' for a causal map",
                         "'key', which would make a token depend on later tokens");
  }
  const Tensor& q_at = h.options.cu_seqlens_q().value_or(Tensor());
  const bool same = q_at.defined() ? q_at.equal(h.options.cu_seqlens_k()->to(q_at.options()))
                                   : h.q1.size(1) == h.k1.size(1);
  if (!same) {
    throw_argument_error("weight", "'query' unless the map is a self-attention",
                         "'key' for " + std::to_string(h.q1.size(-3)) + " rows and " +
                             std::to_string(h.k1.size(-3)) + " columns");
  }
}

}  // namespace

Tensor token_weights(const HeadTensors& heads, TokenWeight weight) {
  if (weight == TokenWeight::kQuery) return query_weights(heads);
  check_bidirectional(heads);
  if (!heads.options.cu_seqlens_q()) return key_weights(heads);
  std::vector<Tensor> parts;
  for (const HeadTensors& one : sequences(heads)) parts.push_back(key_weights(one).squeeze(0));
  return torch::cat(parts, 0);
}

Tensor token_weights(const AttentionTrace& trace, TokenWeight weight) {
  if (trace.calls.empty()) {
    throw_argument_error("trace", "at least one call of the attention layer", "none");
  }
  Tensor sum;
  for (const HeadTensors& heads : trace.calls) {
    const Tensor m = token_weights(heads, weight);
    sum = sum.defined() ? sum + m : m;
  }
  return sum / static_cast<double>(trace.calls.size());
}

TokenFeatureEnhancerImpl::TokenFeatureEnhancerImpl(const TokenFeatureEnhancerOptions& options_)
    : options(options_) {
  reset();
}

void TokenFeatureEnhancerImpl::reset() {
  const int64_t inner = options.reduction() < 1 ? 0 : options.dim() / options.reduction();
  if (inner < 1) {
    throw_argument_error("reduction", "from 1 to dim = " + std::to_string(options.dim()),
                         std::to_string(options.reduction()));
  }
  narrow = register_module("narrow", torch::nn::Linear(options.dim(), inner));
  widen = register_module("widen", torch::nn::Linear(inner, options.dim()));
}

Tensor TokenFeatureEnhancerImpl::forward(const Tensor& x, const Tensor& m) {
  const Tensor scale = torch::sigmoid(widen(torch::relu(narrow(x))));
  return x * scale * (1.0 + m).to(x.scalar_type());
}

}  // namespace diffattn::nn
