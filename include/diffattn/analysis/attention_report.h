// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/analysis/attention_maps.h"
#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/analysis/picture.h"
#include "diffattn/analysis/report.h"

namespace diffattn::analysis {

/// One attention of one model on one text. A model with several (encoder, decoder, cross-attention;
/// paths) is several of these.
struct ModelAttention {
  std::string name;
  std::string description;
  Sequence sequence;  // its tokens and regions; what rows may see is filled in by `describe`
  LayerCalls calls;
  StatisticsTable statistics;
  std::vector<LambdaLayer> lambda;

  int64_t layers() const { return static_cast<int64_t>(calls.size()); }
  int64_t heads() const { return calls.front().q1.size(2); }
};

/// Fills in `sequence.visible_*` from the first layer's call, and statistics and lambda of this
/// text alone where they are empty. Throws std::invalid_argument when the tokens are not those of
/// the maps.
void describe(ModelAttention& model);

struct HeadIndex {
  int64_t layer = 0;
  int64_t head = 0;
};

/// The head with the largest value of a statistic; of the next ones named where it has none.
HeadIndex strongest_head(const StatisticsTable& table, const std::vector<std::string>& keys);

struct ReportOptions {
  /// For every model: the head that the page opens, whose maps are kept entry by entry up to
  /// 512 MiB.
  std::vector<HeadIndex> shown;
  /// All heads are kept entry by entry while the maps stay below this; beyond it, the others are
  /// kept as 256 x 256 cells that keep extremes.
  int64_t max_bytes = int64_t{64} << 20;
  /// Called after every head: done, of all.
  std::function<void(int64_t, int64_t)> progress;
};

/// Writes `report` with the maps of all heads of all models; its sequences and models are made from
/// `models`. One head's maps are in memory at a time.
void write_report(const std::string& path, Report report, const std::vector<ModelAttention>& models,
                  const ReportOptions& options);

/// Which maps a picture has.
enum class Planes { kAll, kMap1, kMap2, kDifference };

/// The maps of one head of each model side by side; the models must have the same tokens.
Picture picture_of(const std::vector<ModelAttention>& models, const std::vector<HeadIndex>& heads,
                   Planes planes);

}  // namespace diffattn::analysis
