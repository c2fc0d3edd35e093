// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis::testing {

/// A synthetic head. As in a trained differential head, both maps attend mostly to the same tokens;
/// map 1 also finds the answer.
struct SyntheticHead {
  int64_t layer = 0;
  int64_t head = 0;
  bool differential = true;
  bool token_lambda = false;  // one lambda per row instead of one number
  uint64_t seed = 1;
};

/// Returns the maps of the head on the sequence; map 1 finds the first "answer" region.
HeadMaps synthetic_maps(const Sequence& sequence, const SyntheticHead& head);

/// Returns lambda_init as in the paper.
double lambda_init(int64_t layer);

/// Computes attention_statistics() of p1 - lambda p2 from their definitions.
std::vector<double> statistics_of(const HeadMaps& maps, const Sequence& sequence);

/// Returns a text of 64 tokens with needles; its end asks for one of them.
Sequence needle_sequence();
/// Returns the tokens "w0", "w1", ... with a causal mask and an answer region.
Sequence numbered_sequence(int64_t tokens);
/// Returns 30 token strings that try to act as markup or code.
std::vector<std::string> hostile_tokens();

}  // namespace diffattn::analysis::testing
