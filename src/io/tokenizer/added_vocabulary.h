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

namespace diffattn::io {

/// Finds added tokens in text: the leftmost match, and the longest of those. Matches do not
/// overlap.
class TokenFinder {
 public:
  /// Adds a token. If two tokens have the same text, the first one wins.
  void add(std::string_view text, const AddedToken& token);

  /// Splits text: calls found(token) and between(position, piece) in order. Special tokens remain
  /// text where skip_special(begin, end) is true, and so do matches that the flags of the token
  /// exclude.
  template <typename SkipSpecial, typename Found, typename Between>
  void split(std::string_view text, SkipSpecial&& skip_special, Found&& found,
             Between&& between) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Match match = next(text, at);
      if (match.token == nullptr) break;
      at = match.end;
      if (match.token->special && skip_special(match.begin, match.end)) continue;
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
    size_t begin = 0, end = 0;
  };

  /// Returns the first match that begins at `at` or later.
  Match next(std::string_view text, size_t at) const;
  /// Returns false if the token is single_word and touches a word character. Otherwise extends the
  /// match over white space as lstrip and rstrip require.
  static bool fits(std::string_view text, size_t done, Match& match);

  // A trie: node 0 is the root, step_[node, byte] the child, ends_[node] the token or nullptr.
  PairMap<uint32_t> step_;
  std::vector<const AddedToken*> ends_ = {nullptr};
  std::array<uint32_t, 256> first_{};  // children of the root
};

}  // namespace diffattn::io
