// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// What happens to entries of the map A at or below their row's threshold
/// tau_i = threshold * max_j |A_ij|.
enum class ThresholdMode {
  kHard,  // A 1[|A| > tau_i]; the gradient passes as if nothing were removed (straight-through)
  kSoft,  // sign(A) max(|A| - tau_i, 0), with its own gradient
};

/// A' v [B, M, H, Dv] (packed [total, H, Dv]) in float32 (float64): the map without its small
/// entries, times the values, with gradients. Maps exist in blocks of rows of `block_bytes`, some
/// twenty of them at the peak of the backward pass, which computes them again: O(N) memory. Head
/// norm and out_scale are not applied.
torch::Tensor thresholded_attention(const HeadTensors& heads, double threshold, ThresholdMode mode,
                                    int64_t block_bytes = int64_t{8} << 20);

struct NoiseReductionOptions {
  /*implicit*/ NoiseReductionOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// Heads times value width of the attention. Default: dim.
  TORCH_ARG(std::optional<int64_t>, inner);
  /// Share of a row's largest magnitude, in [0, 1).
  TORCH_ARG(double, threshold) = 0.1;
  TORCH_ARG(ThresholdMode, mode) = ThresholdMode::kHard;
  /// The filter widens to expansion * dim.
  TORCH_ARG(int64_t, expansion) = 2;
};

/// Adds to x what the map says once its small entries are gone:
/// y = x + W2 gelu(W1 LayerNorm(merge(A' v)) + b1) + b2.
class NoiseReductionImpl : public torch::nn::Cloneable<NoiseReductionImpl> {
 public:
  explicit NoiseReductionImpl(const NoiseReductionOptions& options);
  void reset() override;

  /// x [B, M, dim] (packed [total, dim]) and the call of the attention layer that made it.
  torch::Tensor forward(const torch::Tensor& x, const HeadTensors& heads);

  NoiseReductionOptions options;
  torch::nn::LayerNorm norm{nullptr};                 // [inner]
  torch::nn::Linear widen{nullptr}, narrow{nullptr};  // W1 [expansion dim, inner], W2
};

TORCH_MODULE(NoiseReduction);

}  // namespace diffattn::nn
