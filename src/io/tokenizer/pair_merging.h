// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/tokenizer/bpe.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// Words as symbols, one after the other, each with its count.
struct CountedWords {
  std::vector<TokenId> symbols;
  std::vector<std::uint64_t> begin;  // of each word in symbols
  std::vector<std::uint32_t> length;
  std::vector<std::int64_t> count;
};

/// The training of byte-pair encoding: joins the most frequent pair of neighbours again and again,
/// the one with the smaller ids of equally frequent ones.
///
/// join(first, second) names the joined token: a new id, or the one of an equal token. Stops when
/// more() says no, or when no pair is as frequent as min_frequency. Returns merges in order.
std::vector<Merge> merge_pairs(CountedWords words, std::uint64_t min_frequency,
                               const std::function<TokenId(TokenId, TokenId)>& join,
                               const std::function<bool()>& more);

}  // namespace diffattn::io
