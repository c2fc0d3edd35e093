// SPDX-License-Identifier: Apache-2.0
#include "nn/models/attention_penalty.h"

#include "nn/attention/text_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

AttentionPenalty penalty_of(const HeadTensors& heads, const std::optional<Tensor>& row_lengths) {
  const Tensor stats =
      attention_stats(heads.q1, heads.q2, heads.k1, heads.k2, heads.lambda, heads.options);
  const auto column = [&](Stat stat) { return stats.select(-1, stat); };  // [B, M, H]
  Tensor counts = column(kStatVisible).detach() > 0;
  if (const auto text = text_rows(heads, row_lengths)) counts = counts & text->unsqueeze(-1);
  const Tensor rows = counts.sum().clamp_min(1);
  const Tensor l1 = column(kStatAbsSum);
  const auto mean = [&](const Tensor& values) {
    return torch::where(counts, values, 0.0).sum() / rows;
  };
  const Tensor participation = column(kStatSquareSum) / l1.square().clamp_min(1e-20);
  return {mean(l1 / (1.0 + heads.lambda.abs())), 1.0 - mean(participation)};
}

}  // namespace

AttentionPenalty attention_penalty(const std::vector<AttentionTrace>& traces,
                                   const std::vector<std::optional<Tensor>>& row_lengths,
                                   const std::vector<double>& shares) {
  if (!row_lengths.empty() && row_lengths.size() != traces.size()) {
    throw_argument_error("row_lengths", c10::str("one for each of the ", traces.size(), " traces"),
                         std::to_string(row_lengths.size()));
  }
  std::vector<Tensor> sparsity, focus;
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const HeadTensors& heads : traces[i].calls) {
      const AttentionPenalty one =
          penalty_of(heads, row_lengths.empty() ? std::nullopt : row_lengths[i]);
      const double share = shares.empty() ? 1.0 : shares.at(i);
      sparsity.push_back(one.sparsity * share);
      focus.push_back(one.focus * share);
    }
  }
  if (sparsity.empty()) throw_argument_error("traces", "at least one attention call", "none");
  return {torch::stack(sparsity).mean(), torch::stack(focus).mean()};
}

}  // namespace diffattn::nn
