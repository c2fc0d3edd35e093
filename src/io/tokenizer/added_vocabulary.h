// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/string_map.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// Finds added tokens in text: the leftmost first, of those the longest, none inside another.
class TokenFinder {
 public:
  /// Of two equal texts the first counts.
  void add(std::string_view text, const AddedToken& token);

  /// Cuts text: calls found(token) and between(piece) in order. Tokens that skip_special or their
  /// own flags forbid stay part of the text around them.
  template <typename Found, typename Between>
  void split(std::string_view text, bool skip_special, Found&& found, Between&& between) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const Match match = next(text, at);
      if (match.token == nullptr) break;
      at = match.end;
      if (skip_special && match.token->special) continue;
      Match whole = match;
      if (!fits(text, done, whole)) continue;
      if (whole.begin > done) between(done, text.substr(done, whole.begin - done));
      found(*whole.token);
      done = whole.end;
      at = std::max(at, done);
    }
    if (done < text.size()) between(done, text.substr(done));
  }

 private:
  struct Match {
    const AddedToken* token = nullptr;
    std::size_t begin = 0, end = 0;
  };

  /// The first match that begins at `at` or later.
  Match next(std::string_view text, std::size_t at) const;
  /// False when a single word touches others; else widens the match over white space.
  static bool fits(std::string_view text, std::size_t done, Match& match);

  // A trie: node 0 is the root, step_[node, byte] is the next one, ends_[node] the token, if any.
  PairMap<std::uint32_t> step_;
  std::vector<const AddedToken*> ends_ = {nullptr};
  std::array<std::uint32_t, 256> first_{};  // step_ of the root
};

}  // namespace diffattn::io
