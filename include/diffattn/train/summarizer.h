// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/data/metrics.h"
#include "diffattn/nn/encoder_decoder.h"
#include "diffattn/train/task_data.h"

namespace diffattn::train {

/// How a text is written.
struct WritingOptions {
  int64_t max_new_tokens = 256;
  int64_t beams = 1;  // 1: the likeliest token, always
  /// Texts are compared by log-probability / length^length_penalty: above 0 favours long ones.
  double length_penalty = 1.0;
  int64_t no_repeat_ngram = 0;  // n: no run of n tokens twice; 0: off
};

/// A text for each source (at least one token each, below the vocabulary), without the end token.
/// Sources of different lengths are padded and do not see it; each ends for itself. KV-cached.
/// The model's config has decoder_start_token_id, and eos_token_id where texts have an end. Throws
/// c10::Error for an empty source, a token beyond the vocabulary, or options out of range.
std::vector<std::vector<int64_t>> write_texts(nn::EncoderDecoderImpl& model,
                                              const std::vector<std::vector<int64_t>>& sources,
                                              const WritingOptions& options);

/// Mean ROUGE, over tokens, of greedy summaries of the first `count` validation documents.
data::Rouge summary_quality(TaskModel& model, const TaskData& data, int64_t count);

}  // namespace diffattn::train
