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

namespace diffattn::io {

/// Maps ids to tokens and tokens to ids. Ids need not be contiguous.
class Vocabulary {
 public:
  static constexpr TokenId kNone = StringMap::kNone;

  /// Adds a token, which must be new and not empty. Returns false if the id is already in use.
  bool add(std::string_view token, TokenId id);
  TokenId find(std::string_view token) const { return ids_.find(token); }
  /// Returns a token, or an empty view if the id has none.
  std::string_view token(TokenId id) const {
    return id < tokens_.size() ? std::string_view(tokens_[id]) : std::string_view();
  }
  /// One more than the largest id.
  size_t size() const { return tokens_.size(); }
  size_t count() const { return ids_.size(); }

 private:
  std::vector<std::string> tokens_;
  StringMap ids_;
};

/// A merge: replaces the neighbours `first` and `second` with `joined`. Its index is its rank.
struct Merge {
  TokenId first, second, joined;
};

/// Returns the id of the token `<0xNN>`, or kNone.
TokenId find_byte_token(const Vocabulary& vocabulary, uint8_t byte);
/// Returns the byte of a token of the form `<0xNN>`, or nullopt.
std::optional<uint8_t> byte_of_token(std::string_view token);

/// Byte-pair encoding of single words.
///
/// It starts with the ids of the word's characters (of its bytes in byte-level files). Then it
/// merges the pair of neighbours with the lowest rank, the leftmost first, until no pair is left.
class Bpe {
 public:
  struct Settings {
    bool byte_level = true;      // words are bytes, tokens are written in the byte alphabet
    bool ignore_merges = false;  // a word in the vocabulary becomes one token
    bool byte_fallback = false;  // a character without a token becomes `<0xNN>` for each byte
    bool fuse_unknown = false;   // consecutive unknown characters become one unknown token
    TokenId unknown = Vocabulary::kNone;
  };

  Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const Settings& settings);

  /// Appends the word's ids.
  void encode(std::string_view word, std::vector<TokenId>& ids) const;
  const Settings& settings() const { return settings_; }

 private:
  struct Joined {
    uint32_t rank = 0xffffffff;
    TokenId id = 0;
  };
  static constexpr uint32_t kNoRank = 0xffffffff;

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
  std::array<TokenId, 256> byte_ids_;      // ids of bytes; of ASCII characters if not byte_level
  std::array<TokenId, 256> fallback_ids_;  // ids of `<0xNN>`
  StringMap characters_;                   // ids of single characters if not byte_level
  // Words that become one token: every token if ignore_merges is set, else every token that the
  // merges produce from its own characters. Most words of a text are here.
  StringMap words_;
};

}  // namespace diffattn::io
