// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/noise_reduction.h"

#include <vector>

#include "nn/parts/map_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Removes the entries of a map [B, H, C, N] below the threshold of their row.
Tensor without_small_entries(const Tensor& map, double threshold, ThresholdMode mode) {
  if (map.size(-1) == 0) return map;
  const Tensor magnitude = map.abs();
  const Tensor tau = threshold * std::get<0>(magnitude.max(-1, /*keepdim=*/true));
  if (mode == ThresholdMode::kSoft) return map.sign() * torch::relu(magnitude - tau);
  const Tensor removed = map.masked_fill(magnitude > tau, 0.0).detach();
  return map - removed;
}

}  // namespace

Tensor thresholded_attention(const HeadTensors& heads, double threshold, ThresholdMode mode,
                             int64_t block_bytes) {
  std::vector<Tensor> parts;
  for (const HeadTensors& one : sequences(heads)) {
    const Tensor rows = over_row_blocks(
        one, Join::kRows,
        [=](const RowBlock& block) {
          return without_small_entries(block.map, threshold, mode).matmul(block.v);
        },
        block_bytes);
    parts.push_back(rows.transpose(1, 2));  // [B, M, H, Dv]
  }
  if (!heads.options.cu_seqlens_q()) return parts.at(0);
  return torch::cat(parts, 1).squeeze(0);
}

NoiseReductionImpl::NoiseReductionImpl(const NoiseReductionOptions& options_) : options(options_) {
  reset();
}

void NoiseReductionImpl::reset() {
  if (!(options.threshold() >= 0.0 && options.threshold() < 1.0)) {
    throw_argument_error("threshold", "a share of the largest entry, in [0, 1)",
                         std::to_string(options.threshold()));
  }
  if (options.expansion() < 1) {
    throw_argument_error("expansion", "at least 1", std::to_string(options.expansion()));
  }
  const int64_t inner = options.inner().value_or(options.dim());
  const int64_t hidden = options.expansion() * options.dim();
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({inner})));
  widen = register_module("widen", torch::nn::Linear(inner, hidden));
  narrow = register_module("narrow", torch::nn::Linear(hidden, options.dim()));
}

Tensor NoiseReductionImpl::forward(const Tensor& x, const HeadTensors& heads) {
  const int64_t inner = options.inner().value_or(options.dim());
  if (heads.q1.size(-2) * heads.v.size(-1) != inner) {
    throw_argument_error("inner",
                         "heads times value width of the attention = " +
                             std::to_string(heads.q1.size(-2) * heads.v.size(-1)),
                         std::to_string(inner));
  }
  const Tensor merged =
      thresholded_attention(heads, options.threshold(), options.mode()).flatten(-2);
  return x + narrow(torch::gelu(widen(norm(merged.to(x.scalar_type())))));
}

}  // namespace diffattn::nn
