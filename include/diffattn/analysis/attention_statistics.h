// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "diffattn/analysis/report.h"
#include "diffattn/nn/attention_layer.h"

namespace diffattn::analysis {

/// The arguments of the `attention` call of each layer, for one kind of attention of a model.
using LayerCalls = std::vector<nn::HeadTensors>;

/// Regroups traces, one per layer: element i of the result holds call i of every layer. Ordinary
/// attention makes one call in a layer, introspective attention one per path. Throws
/// diffattn::Error if there are no calls or if layers differ in their number of calls.
std::vector<LayerCalls> calls_of(const std::vector<nn::AttentionTrace>& traces);

/// Entries with |A| below this threshold count as zero for the sparsity.
inline constexpr double kSparseThreshold = 1e-3;

/// Returns the statistics of every row of a call in double precision, [B, M, H, kStatCount] (packed
/// [total, H, ...]). They are 0 for rows of padding (`nn::text_rows`) and rows that see no column.
torch::Tensor row_statistics(const nn::HeadTensors& call,
                             double sparse_threshold = kSparseThreshold,
                             const std::optional<torch::Tensor>& row_lengths = {});

/// Accumulates the statistics of `attention_statistics()` per layer and head over any number of
/// sequences. Memory is linear in the length of a sequence (`attention_stats`); sums are in double
/// precision. Padding and rows that see no column do not count.
class AttentionStatistics {
 public:
  explicit AttentionStatistics(double sparse_threshold = kSparseThreshold)
      : sparse_threshold_(sparse_threshold) {}

  /// Adds batches [B, M, H, D] or packed sequences [total, H, D] on any device; computes no
  /// gradients. Throws diffattn::Error if the number of layers or heads differs from earlier
  /// calls.
  void add(const LayerCalls& calls);
  /// Like add(calls), with the results of row_statistics() for each of the calls.
  void add(const LayerCalls& calls, const std::vector<torch::Tensor>& rows);

  /// Returns the means so far. They are NaN if no row sees a column; lambda, similarity and noise
  /// cancelled are NaN for plain attention.
  StatisticsTable table() const;

  /// Returns lambda of every head of every layer over the tokens so far. A layer whose heads share
  /// lambda has one entry; a layer of plain attention is left out.
  std::vector<LambdaLayer> lambda() const;

 private:
  struct Head {
    std::vector<double> sums;  // one per statistic
    double rows = 0;           // rows that see at least one column
    double entries = 0;        // visible entries
    LambdaValue lambda{};      // `mean` holds the sum so far
    double lambdas = 0;        // number of values in that sum
  };
  struct Layer {
    std::vector<Head> heads;
    bool plain = false;
    bool shared_lambda = false;  // all heads share one number
  };
  /// `visible` is the number of visible entries of each row, [R, H].
  static void add_lambda(Layer& layer, const nn::HeadTensors& call, const torch::Tensor& visible);

  double sparse_threshold_;
  std::vector<Layer> layers_;
};

}  // namespace diffattn::analysis
