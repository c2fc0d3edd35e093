// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis::testing {

/// Softmax maps of made-up heads: both maps share most of what they attend to, as the two maps of
/// a trained differential head do; map 1 also finds the answer.
struct SyntheticHead {
  int64_t layer = 0;
  int64_t head = 0;
  bool differential = true;
  bool token_lambda = false;  // one lambda per row instead of one for all
  uint64_t seed = 1;
};

/// Maps of the head on the sequence; its first "answer" region is what map 1 finds.
HeadMaps synthetic_maps(const Sequence& sequence, const SyntheticHead& head);

/// lambda_init of the paper.
double lambda_init(int64_t layer);

/// attention_statistics() of p1 - lambda p2 by their definitions.
std::vector<double> statistics_of(const HeadMaps& maps, const Sequence& sequence);

/// A text of 64 tokens with needles, one of which is asked for at its end.
Sequence needle_sequence();
/// "w0", "w1", ... under a causal mask, with an answer region.
Sequence numbered_sequence(int64_t tokens);
/// 30 token strings that try to be something else than text.
std::vector<std::string> hostile_tokens();

}  // namespace diffattn::analysis::testing
