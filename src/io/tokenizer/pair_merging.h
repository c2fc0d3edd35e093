// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/tokenizer/bpe.h"

namespace diffattn::io {

/// Words as sequences of symbols, each with its count in the text.
struct CountedWords {
  std::vector<TokenId> symbols;
  std::vector<uint64_t> begin;  // start of each word in symbols
  std::vector<uint32_t> length;
  std::vector<int64_t> count;
};

/// Trains byte-pair encoding: merges the most frequent pair of neighbours again and again. Of
/// equally frequent pairs, it takes the one with the smaller ids.
///
/// join(first, second) returns the id of the joined token, which may exist already, or
/// Vocabulary::kNone for a pair that must not be merged. Training stops when more() returns false
/// or no pair occurs min_frequency times. Returns the merges in order.
std::vector<Merge> merge_pairs(CountedWords words, uint64_t min_frequency,
                               const std::function<TokenId(TokenId, TokenId)>& join,
                               const std::function<bool()>& more);

}  // namespace diffattn::io
