// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "diffattn/infer/batcher.h"
#include "diffattn/nn/decoder.h"

namespace diffattn::infer {

/// A token of a prompt, with its log-probability after the tokens before it.
struct ScoredToken {
  int64_t token = 0;
  float log_probability = 0.0f;                // 0 for the first token, which nothing precedes
  std::vector<Alternative> alternatives = {};  // the likeliest tokens instead of it
};

/// Computes the log-probabilities of a prompt's tokens with the modules, part by part, so that the
/// caller can do other work between parts. The caller must not move the model meanwhile.
class PromptScore {
 public:
  /// Each token after the first comes with `alternatives` alternatives. Throws diffattn::Error for
  /// an empty prompt or a token outside the vocabulary.
  PromptScore(nn::CausalLM model, std::vector<int64_t> prompt, int64_t alternatives);

  /// Computes the next tokens, at most `tokens`. Returns false when all are done.
  bool advance(int64_t tokens);
  /// The tokens computed so far.
  const std::vector<ScoredToken>& scores() const { return scores_; }
  std::vector<ScoredToken> take_scores() { return std::move(scores_); }

 private:
  nn::CausalLM model_;
  std::vector<int64_t> prompt_;
  int64_t alternatives_;
  int64_t computed_ = 0;  // tokens that the model has seen
  nn::KvCaches caches_;
  std::vector<ScoredToken> scores_;
};

}  // namespace diffattn::infer
