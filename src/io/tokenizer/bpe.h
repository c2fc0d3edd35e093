// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/string_map.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// Tokens by id and ids by token. Ids may have holes.
class Vocabulary {
 public:
  static constexpr TokenId kNone = StringMap::kNone;

  /// False when the id is taken; the token must be new and not empty.
  bool add(std::string_view token, TokenId id);
  TokenId find(std::string_view token) const { return ids_.find(token); }
  /// Empty for an id without a token.
  std::string_view token(TokenId id) const {
    return id < tokens_.size() ? std::string_view(tokens_[id]) : std::string_view();
  }
  /// One more than the largest id.
  std::size_t size() const { return tokens_.size(); }
  std::size_t count() const { return ids_.size(); }

 private:
  std::vector<std::string> tokens_;
  StringMap ids_;
};

/// first and second next to each other become joined; merges come in order of rank.
struct Merge {
  TokenId first, second, joined;
};

/// The id of `<0xNN>`, or kNone.
TokenId find_byte_token(const Vocabulary& vocabulary, std::uint8_t byte);
/// The byte of a token of exactly that form.
std::optional<std::uint8_t> byte_of_token(std::string_view token);

/// Byte-pair encoding of single words.
///
/// A word's characters (its bytes, in byte-level files) are replaced by their ids; then the pair of
/// neighbours whose merge has the lowest rank, the leftmost of equal ones, is joined until none is
/// left.
class Bpe {
 public:
  struct Settings {
    bool byte_level = true;      // words are bytes, tokens are written in the byte alphabet
    bool ignore_merges = false;  // a word that is a token is that token
    bool byte_fallback = false;  // a character without a token becomes `<0xNN>` for its bytes
    bool fuse_unknown = false;   // unknown characters in a row give one unknown token
    TokenId unknown = Vocabulary::kNone;
  };

  Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const Settings& settings);

  /// Appends the word's ids.
  void encode(std::string_view word, std::vector<TokenId>& ids) const;
  const Settings& settings() const { return settings_; }

 private:
  struct Joined {
    std::uint32_t rank = 0xffffffff;
    TokenId id = 0;
  };
  static constexpr std::uint32_t kNoRank = 0xffffffff;

  void index_words(const Vocabulary& vocabulary);
  void symbols_of(std::string_view word, std::vector<TokenId>& symbols) const;
  void merge_into(std::vector<TokenId>& symbols, std::vector<TokenId>& ids) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  template <typename Queue>
  void merge_long(std::vector<TokenId>& symbols) const;
  Joined joined(TokenId first, TokenId second) const {
    return pairs_.find(PairMap<Joined>::pair_of(first, second));
  }

  Settings settings_;
  PairMap<Joined> pairs_;
  std::array<TokenId, 256> byte_ids_;      // of bytes; of ASCII characters when not byte_level
  std::array<TokenId, 256> fallback_ids_;  // of `<0xNN>`
  StringMap characters_;                   // ids of single characters, when not byte_level
  // Words that become one token: all tokens with ignore_merges, else those that their own merges
  // lead to. Most words of a text are found here.
  StringMap words_;
};

}  // namespace diffattn::io
