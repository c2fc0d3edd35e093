// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// The treatment of map entries |A_ij| at or below the threshold of their row,
/// tau_i = threshold * max_j |A_ij|.
enum class ThresholdMode {
  kHard,  // A 1[|A| > tau_i] with a straight-through gradient, as if no entry were removed
  kSoft,  // sign(A) max(|A| - tau_i, 0) with its exact gradient
};

/// Computes A' v, the map without its small entries times the values: [B, M, H, Dv] (packed
/// [total, H, Dv]) in float32 (float64), with gradients. It works in blocks of map rows of
/// `block_bytes` and computes them a second time in the backward pass, so memory is O(N): about
/// twenty blocks at the peak. Does not apply the head norm and out_scale.
torch::Tensor thresholded_attention(const HeadTensors& heads, double threshold, ThresholdMode mode,
                                    int64_t block_bytes = int64_t{8} << 20);

struct NoiseReductionOptions {
  /*implicit*/ NoiseReductionOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// Number of heads times value width of the attention. Default: dim.
  TORCH_ARG(std::optional<int64_t>, inner);
  /// Threshold as a share of the largest magnitude in the row, in [0, 1).
  TORCH_ARG(double, threshold) = 0.1;
  TORCH_ARG(ThresholdMode, mode) = ThresholdMode::kHard;
  /// The hidden width of the filter is expansion * dim.
  TORCH_ARG(int64_t, expansion) = 2;
};

/// Adds a filtered attention result to x, computed from the map A' without its small entries:
/// y = x + W2 gelu(W1 LayerNorm(merge(A' v)) + b1) + b2.
class NoiseReductionImpl : public torch::nn::Cloneable<NoiseReductionImpl> {
 public:
  explicit NoiseReductionImpl(const NoiseReductionOptions& options);
  void reset() override;

  /// x [B, M, dim] (packed [total, dim]), and the attention call that gave x.
  torch::Tensor forward(const torch::Tensor& x, const HeadTensors& heads);

  NoiseReductionOptions options;
  torch::nn::LayerNorm norm{nullptr};                 // [inner]
  torch::nn::Linear widen{nullptr}, narrow{nullptr};  // W1 [expansion dim, inner], W2
};

TORCH_MODULE(NoiseReduction);

}  // namespace diffattn::nn
