// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/attention_penalty.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

AttentionPenalty penalty_of(const HeadTensors& heads) {
  const Tensor stats =
      attention_stats(heads.q1, heads.q2, heads.k1, heads.k2, heads.lambda, heads.options);
  const auto column = [&](Stat stat) { return stats.select(-1, stat); };  // [B, M, H]
  const Tensor sees = column(kStatVisible).detach() > 0;
  const Tensor rows = sees.sum().clamp_min(1);
  const Tensor l1 = column(kStatAbsSum);
  const auto mean = [&](const Tensor& values) {
    return torch::where(sees, values, 0.0).sum() / rows;
  };
  const Tensor participation = column(kStatSquareSum) / l1.square().clamp_min(1e-20);
  return {mean(l1 / (1.0 + heads.lambda.abs())), 1.0 - mean(participation)};
}

}  // namespace

AttentionPenalty attention_penalty(const std::vector<AttentionTrace>& traces) {
  std::vector<Tensor> sparsity, focus;
  for (const AttentionTrace& trace : traces) {
    for (const HeadTensors& heads : trace.calls) {
      const AttentionPenalty one = penalty_of(heads);
      sparsity.push_back(one.sparsity);
      focus.push_back(one.focus);
    }
  }
  TORCH_CHECK(!sparsity.empty(), "attention_penalty: traces: expected at least one attention call");
  return {torch::stack(sparsity).mean(), torch::stack(focus).mean()};
}

}  // namespace diffattn::nn
