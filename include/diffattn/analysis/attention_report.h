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

/// One kind of attention of a model on one text. A model with several kinds (encoder, decoder,
/// cross-attention, paths) has several of these.
struct ModelAttention {
  std::string name;
  std::string description;
  Sequence sequence;  // tokens and regions; describe() fills in visible_begin and visible_end
  LayerCalls calls;
  StatisticsTable statistics;
  std::vector<LambdaLayer> lambda;

  int64_t layers() const { return static_cast<int64_t>(calls.size()); }
  int64_t heads() const { return calls.front().q1.size(2); }
};

/// Fills in `sequence.visible_*` from the call of the first layer. If there are no statistics, also
/// fills in the statistics and lambda of this text. Throws diffattn::Error if the numbers of
/// tokens differ from the sizes of the maps.
void describe(ModelAttention& model);

/// Returns the tokens of one path of introspective attention, counted from 0. Path i sees i + 1
/// keys of every token, so each token becomes i + 1 columns, labelled with the path of the key. The
/// regions widen accordingly.
Sequence path_sequence(Sequence tokens, int64_t path);

struct HeadIndex {
  int64_t layer = 0;
  int64_t head = 0;
};

/// Returns the head with the largest value of the first statistic in `keys` that has a positive
/// value. Returns layer 0, head 0 if none has.
HeadIndex strongest_head(const StatisticsTable& table, const std::vector<std::string>& keys);

/// Returns the head, among those of `layer` and `head` if given, that gives most to the regions of
/// kind "answer" in the row of the question. Returns none without a question or such a region.
std::optional<HeadIndex> head_on_answer(const ModelAttention& model,
                                        std::optional<int64_t> layer = {},
                                        std::optional<int64_t> head = {});

struct ReportOptions {
  /// The head of each model that the page opens first. These maps keep every entry if together they
  /// need at most `max_opened_bytes`, with the default about 11,000 tokens for one head.
  std::vector<HeadIndex> shown;
  int64_t max_opened_bytes = int64_t{512} << 20;
  /// If the maps of all heads could need more bytes than this, the other heads are downsampled to
  /// at most 512 x 512 cells of one byte, and further until all of them fit. A cell has its entry
  /// of largest magnitude.
  int64_t max_bytes = int64_t{16} << 20;
  /// Called after every head with the heads done and the total.
  std::function<void(int64_t, int64_t)> progress;
};

/// Writes `report` with the maps of all heads of all models. Fills in its sequences and models from
/// `models`. Only the maps of one head are in memory at a time.
void write_report(const std::string& path, Report report, const std::vector<ModelAttention>& models,
                  const ReportOptions& options);

/// The maps that a picture shows.
enum class Planes { kAll, kMap1, kMap2, kDifference };

/// Returns a picture of the maps of one head per model. The models must have the same tokens.
/// Throws diffattn::Error for Planes::kMap2 if no model is differential.
Picture picture_of(const std::vector<ModelAttention>& models, const std::vector<HeadIndex>& heads,
                   Planes planes);

}  // namespace diffattn::analysis
