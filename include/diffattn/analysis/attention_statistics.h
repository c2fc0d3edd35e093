// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "diffattn/analysis/report.h"
#include "diffattn/nn/attention_layer.h"

namespace diffattn::analysis {

/// One attention of a model, layer by layer: the arguments of each layer's `attention` call.
using LayerCalls = std::vector<nn::HeadTensors>;

/// Traces, one per layer, as one list per call: ordinary attention makes one call in a layer,
/// introspective attention one for each path. Throws std::invalid_argument when layers differ in
/// their number of calls, and when there are none.
std::vector<LayerCalls> calls_of(const std::vector<nn::AttentionTrace>& traces);

/// What |A| < threshold counts as nothing.
inline constexpr double kSparseThreshold = 1e-3;

/// Statistics of every row of a call in double, [B, M, H, kStatCount] (packed [total, H, ...]).
/// Rows of padding (`nn::text_rows`) are all 0, as rows that see nothing are.
torch::Tensor row_statistics(const nn::HeadTensors& call,
                             double sparse_threshold = kSparseThreshold,
                             const std::optional<torch::Tensor>& row_lengths = {});

/// The statistics of `attention_statistics()` per layer and head, summed up over any number of
/// sequences. A sequence costs memory linear in its length (`attention_stats`); sums are in double
/// precision. Padding and rows that see nothing do not count.
class AttentionStatistics {
 public:
  explicit AttentionStatistics(double sparse_threshold = kSparseThreshold)
      : sparse_threshold_(sparse_threshold) {}

  /// Batches [B, M, H, D] or packed sequences [total, H, D], on any device; no gradients. Throws
  /// std::invalid_argument when layers or heads are not those of earlier calls.
  void add(const LayerCalls& calls);
  /// The same with what `row_statistics` gave for each of the calls.
  void add(const LayerCalls& calls, const std::vector<torch::Tensor>& rows);

  /// Means so far. NaN: what a plain map does not have (lambda, likeness, noise cancelled), and
  /// everything when no row saw anything.
  StatisticsTable table() const;

  /// lambda of every head of every layer over the tokens so far; one entry for a layer whose heads
  /// share it, no layers for plain attention.
  std::vector<LambdaLayer> lambda() const;

 private:
  struct Head {
    std::vector<double> sums;  // one per statistic
    double rows = 0;           // that see something
    double entries = 0;        // that may be seen
    LambdaValue lambda{};      // mean: the sum so far
    double lambdas = 0;        // in that sum
  };
  struct Layer {
    std::vector<Head> heads;
    bool plain = false;
    bool shared_lambda = false;  // one number for all heads
  };
  /// `visible` [R, H]: entries that each row may see.
  static void add_lambda(Layer& layer, const nn::HeadTensors& call, const torch::Tensor& visible);

  double sparse_threshold_;
  std::vector<Layer> layers_;
};

}  // namespace diffattn::analysis
