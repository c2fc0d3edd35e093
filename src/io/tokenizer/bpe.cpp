// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/bpe.h"

#include <algorithm>
#include <random>

#include "diffattn/io/error.h"
#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/merge_queue.h"
#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

// Up to this length, a linear search for the lowest rank is faster than a queue.
constexpr size_t kShortWord = 48;
// Up to this length, MergeHeap is faster than MergeLists.
constexpr size_t kMiddleWord = 4096;
// Longer words are rarely whole tokens, so hashing them would not pay.
constexpr size_t kLongestIndexedWord = 64;

constexpr char kHexDigits[] = "0123456789ABCDEF";

}  // namespace

uint64_t table_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return seed;
}

bool Vocabulary::add(std::string_view token, TokenId id) {
  if (id >= tokens_.size()) tokens_.resize(id + 1);
  if (!tokens_[id].empty()) return false;
  tokens_[id] = token;
  ids_.insert(token, id);
  return true;
}

TokenId find_byte_token(const Vocabulary& vocabulary, uint8_t byte) {
  const char token[] = {'<', '0', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15], '>'};
  return vocabulary.find(std::string_view(token, sizeof token));
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  const std::string_view digits(kHexDigits, 16);
  const auto high = digits.find(token[3]), low = digits.find(token[4]);
  if (high == digits.npos || low == digits.npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const Settings& settings)
    : settings_(settings) {
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    // If a pair has two merges, the later one wins, as in the reference implementation.
    pairs_[PairMap<Joined>::pair_of(merge.first, merge.second)] = {rank, merge.joined};
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    const char single = static_cast<char>(b);
    const std::string_view text = settings.byte_level ? visible(b) : std::string_view(&single, 1);
    byte_ids_[byte] = vocabulary.find(text);
    fallback_ids_[byte] = find_byte_token(vocabulary, b);
  }
  for (TokenId id = 0; !settings.byte_level && id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.token(id);
    if (!token.empty() && unicode::character_at(token, 0).size == token.size()) {
      characters_.insert(token, id);
    }
  }
  index_words(vocabulary);
}

void Bpe::index_words(const Vocabulary& vocabulary) {
  std::vector<TokenId> symbols, ids;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.token(id);
    if (token.empty()) continue;
    std::optional<std::string> word(token);
    if (settings_.byte_level) word = from_visible(token);
    if (!word || word->empty()) continue;
    if (!settings_.ignore_merges) {
      if (word->size() > kLongestIndexedWord) continue;
      ids.clear();
      symbols_of(*word, symbols);
      merge_into(symbols, ids);
      if (ids.size() != 1 || ids[0] != id) continue;
    }
    words_.insert(*word, id);
  }
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& ids) const {
  if (word.size() > kMaxTextBytes) {  // Metaspace lengthens every space
    throw Error("text to encode",
                "expected a word of at most " + std::to_string(kMaxTextBytes) + " bytes, got more");
  }
  if (word.size() <= kLongestIndexedWord || settings_.ignore_merges) {
    if (const TokenId id = words_.find(word); id != Vocabulary::kNone) {
      ids.push_back(id);
      return;
    }
  }
  thread_local std::vector<TokenId> symbols;
  symbols_of(word, symbols);
  merge_into(symbols, ids);
  if (symbols.capacity() > (size_t{1} << 20)) std::vector<TokenId>().swap(symbols);
}

void Bpe::symbols_of(std::string_view word, std::vector<TokenId>& symbols) const {
  symbols.clear();
  bool unknown = false;  // unknown characters whose token is not written yet
  for (size_t at = 0, size = 1; at < word.size(); at += size) {
    const auto byte = static_cast<uint8_t>(word[at]);
    TokenId id = byte_ids_[byte];
    size = 1;
    if (!settings_.byte_level && byte >= 0x80) {
      size = unicode::character_at(word, at).size;
      id = characters_.find(word.substr(at, size));
    }
    if (id != Vocabulary::kNone) {
      if (unknown) symbols.push_back(settings_.unknown);
      unknown = false;
      symbols.push_back(id);
      continue;
    }
    const std::string_view character = settings_.byte_level ? visible(byte) : word.substr(at, size);
    const auto has_fallback = [&](char b) {
      return fallback_ids_[static_cast<uint8_t>(b)] != Vocabulary::kNone;
    };
    if (settings_.byte_fallback && std::all_of(character.begin(), character.end(), has_fallback)) {
      for (const char b : character) symbols.push_back(fallback_ids_[static_cast<uint8_t>(b)]);
      continue;
    }
    if (settings_.unknown == Vocabulary::kNone) continue;
    if (unknown && !settings_.fuse_unknown) symbols.push_back(settings_.unknown);
    unknown = true;
  }
  if (unknown) symbols.push_back(settings_.unknown);
}

void Bpe::merge_into(std::vector<TokenId>& symbols, std::vector<TokenId>& ids) const {
  if (pairs_.size() == 0) {
    // Tokenizer::bytes() has no merges, and its only word is the whole text.
  } else if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else if (symbols.size() <= kMiddleWord) {
    merge_long<MergeHeap>(symbols);
  } else {
    merge_long<MergeLists>(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  if (symbols.size() < 2) return;
  std::array<Joined, kShortWord> next;  // next[i]: the merge of symbols i and i + 1
  size_t pairs = symbols.size() - 1;
  for (size_t i = 0; i < pairs; ++i) next[i] = joined(symbols[i], symbols[i + 1]);
  while (pairs > 0) {
    const auto best = std::min_element(next.begin(), next.begin() + static_cast<ptrdiff_t>(pairs),
                                       [](Joined a, Joined b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) return;
    const auto at = static_cast<size_t>(best - next.begin());
    symbols[at] = best->id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    std::copy(next.begin() + static_cast<ptrdiff_t>(at) + 1,
              next.begin() + static_cast<ptrdiff_t>(pairs), best);
    --pairs;
    if (at < pairs) next[at] = joined(symbols[at], symbols[at + 1]);
    if (at > 0) next[at - 1] = joined(symbols[at - 1], symbols[at]);
  }
}

template <typename Queue>
void Bpe::merge_long(std::vector<TokenId>& symbols) const {
  constexpr uint32_t kEnd = 0xffffffff;
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(count), next(count);
  std::vector<Joined> right(count);  // the merge of symbol i and the next one
  Queue queue;
  const auto renew = [&](uint32_t at) {
    right[at] = next[at] == kEnd ? Joined{} : joined(symbols[at], symbols[next[at]]);
    if (right[at].rank != kNoRank) queue.push({right[at].rank, at});
  };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == count ? kEnd : i + 1;
    renew(i);
  }
  while (!queue.empty()) {
    const auto [rank, at] = queue.pop();
    if (right[at].rank != rank) continue;  // the pair has changed since it was queued
    const uint32_t gone = next[at];
    symbols[at] = right[at].id;
    right[gone] = Joined{};
    next[at] = next[gone];
    if (next[at] != kEnd) previous[next[at]] = at;
    if (previous[at] != kEnd) renew(previous[at]);
    renew(at);
  }
  size_t kept = 0;
  for (uint32_t at = 0; at != kEnd; at = next[at]) symbols[kept++] = symbols[at];
  symbols.resize(kept);
}

}  // namespace diffattn::io
