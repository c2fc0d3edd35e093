// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/data/metrics.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// Options of `write_texts`.
struct WritingOptions {
  int64_t max_new_tokens = 256;
  int64_t beams = 1;  // 1: greedy
  /// Beam search ranks texts by log-probability / length^length_penalty. Values above 0 favour long
  /// texts.
  double length_penalty = 1.0;
  int64_t no_repeat_ngram = 0;  // n: no n-gram occurs twice; 0: off
};

/// Generates a text for each source by beam search with a KV cache. Returns token ids without the
/// end token. The text of a source does not depend on the other sources.
///
/// The model's config must have decoder_start_token_id, and eos_token_id if texts have an end.
/// Throws diffattn::Error for an empty source, a token outside the vocabulary or an option out of
/// range.
std::vector<std::vector<int64_t>> write_texts(nn::EncoderDecoderImpl& model,
                                              const std::vector<std::vector<int64_t>>& sources,
                                              const WritingOptions& options);

/// Computes the mean ROUGE over tokens of greedy summaries of the first `count` validation
/// documents.
data::Rouge summary_quality(TaskModel& model, const TaskData& data, int64_t count);

}  // namespace diffattn::train
