// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/data/metrics.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/evaluate.h"

namespace diffattn::io {
class Tokenizer;
}

namespace diffattn::train {

/// Returns the number of bytes of text that each token id stands for, [vocab] int64. Special tokens
/// stand for none.
torch::Tensor token_bytes(const io::Tokenizer& tokenizer);

/// Results for lengths in (from, to]; see Predictions::lengths.
struct LengthBucket {
  int64_t from = 0, to = 0;
  Evaluation sums;   // `seconds` is 0
  Values attention;  // as Evaluator::attention(), for rows that see (from, to] tokens
};

/// Evaluates a model on any number of batches. It keeps a few sums per length bucket
/// (2^(k-1), 2^k] and no attention maps.
class Evaluator {
 public:
  /// Computes attention statistics for the first `stats_batches` batches. Puts the model into
  /// evaluation mode.
  Evaluator(TaskModel& model, std::string dtype, int64_t stats_batches = 1);

  /// Counts the bytes of later labels; `bytes` is the result of token_bytes().
  void count_bytes(torch::Tensor bytes) { bytes_of_token_ = std::move(bytes); }
  /// Rounds the inputs of linear maps to integers of `bits` bits in later batches (RoundedInputs).
  void round_activations(int64_t bits) { activation_bits_ = bits; }
  void add(const Batch& batch);
  /// Sums the results of all ranks, which have evaluated different batches. Attention statistics
  /// stay those of this rank; `seconds` becomes that of the slowest rank.
  void sum(parallel::Collective& world);

  const Evaluation& total() const { return total_; }
  /// Returns the number of bytes that the labels stand for; 0 without count_bytes().
  int64_t bytes() const { return bytes_; }
  /// Returns the loss in bits per byte of text, which does not depend on the tokenizer. NaN without
  /// count_bytes().
  double bits_per_byte() const;
  /// Returns the buckets that are not empty, shortest first.
  std::vector<LengthBucket> buckets() const;
  /// Returns the means over all layers and rows: "focus", "coverage", "negative_mass",
  /// "noise_cancelled", "sparsity" and "entropy", defined as in `analysis::attention_statistics()`.
  /// Coverage is the share of entries with A > 1/10. NaN if no layer has the statistic; empty
  /// without statistics.
  Values attention() const;
  /// Returns the means per layer for the same batches: "layer.0.focus", ...
  Values layer_attention() const { return layers_.means(); }
  /// Returns the confusion matrix of a classifier. It has no classes for other models.
  const data::Confusion& confusion() const { return confusion_; }

 private:
  void add_predictions(const Predictions& made);
  void add_statistics(const Batch& batch, const TaskModel::Traces& traces);

  TaskModel& model_;
  std::string dtype_;
  int64_t stats_batches_;
  Evaluation total_;
  torch::Tensor bytes_of_token_;  // [vocab] int64, or undefined
  int64_t bytes_ = 0;
  int64_t activation_bits_ = 0;
  torch::Tensor sums_;      // [buckets, 3] float64: labels, loss, right
  torch::Tensor row_sums_;  // [buckets, statistics + 3] float64; see evaluator.cpp
  LayerStatistics layers_;
  data::Confusion confusion_;
};

}  // namespace diffattn::train
