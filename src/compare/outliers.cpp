// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "compare/measure.h"
#include "diffattn/nn/decoder.h"

namespace diffattn::compare {
namespace {

using torch::Tensor;

constexpr int64_t kLogitRows = 64;  // last rows of each sequence
constexpr int64_t kOutlierSequences = 8;

Outliers outliers_of(const std::vector<Tensor>& parts) {
  const Tensor all = torch::cat(parts);
  const Tensor top = std::get<0>(all.topk(std::min<int64_t>(100, all.numel())));
  const auto at = [&](int64_t rank) { return top[std::min(rank, top.numel()) - 1].item<double>(); };
  return {at(1), at(10), at(100), all.median().item<double>()};
}

/// Computes |scale q k^T| in the last rows, under the causal mask, as a flat tensor.
/// q [B, N, H, D], k [B, N, Hkv, D].
Tensor logits_of(const Tensor& q, const Tensor& k, double scale) {
  const int64_t length = k.size(1), rows = std::min(kLogitRows, q.size(1));
  const Tensor keys = k.repeat_interleave(q.size(2) / k.size(2), 2);
  const Tensor scores = torch::einsum("bmhd,bnhd->bhmn", {q.slice(1, -rows).to(torch::kFloat32),
                                                          keys.to(torch::kFloat32)}) *
                        scale;
  const Tensor visible =
      torch::ones({rows, length}, scores.options().dtype(torch::kBool)).tril(length - rows);
  return scores.abs().masked_select(visible).to(torch::kCPU);
}

}  // namespace

void measure_outliers(train::TaskModel& model, const train::Batch& given, RunResult& result) {
  const auto decoder = std::dynamic_pointer_cast<nn::CausalLMImpl>(model.module());
  if (!decoder || given.mask.cu_seqlens_q()) return;
  const torch::NoGradGuard no_grad;
  decoder->eval();
  nn::DecoderInput input;
  input.ids = given.ids.slice(0, 0, kOutlierSequences).to(model.device());
  train::TaskModel::Traces traces;
  input.traces = &traces;
  input.keep_hidden = true;
  const nn::DecoderOutput output = decoder->forward(input);
  std::vector<Tensor> logits, hidden;
  for (const nn::AttentionTrace& layer : traces) {
    for (const nn::HeadTensors& h : layer.calls) {
      const double scale =
          h.options.scale().value_or(1.0 / std::sqrt(static_cast<double>(h.q1.size(-1))));
      logits.push_back(logits_of(h.q1, h.k1, scale));
      if (!h.single_map) {
        logits.push_back(logits_of(h.q2, h.k2, h.options.scale2().value_or(scale)));
      }
    }
  }
  // Quantisation acts on the states between layers, so we leave out embeddings and the last norm.
  for (size_t i = 1; i + 1 < output.hidden.size(); ++i) {
    hidden.push_back(output.hidden[i].flatten().abs().to(torch::kCPU, torch::kFloat32));
  }
  result.attention_logits = outliers_of(logits);
  if (!hidden.empty()) result.hidden_states = outliers_of(hidden);
}

}  // namespace diffattn::compare
