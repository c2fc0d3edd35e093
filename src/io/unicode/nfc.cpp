// SPDX-License-Identifier: Apache-2.0
#include "io/unicode/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "io/unicode/characters.h"
#include "io/unicode/unicode_data.h"

namespace diffattn::io::unicode {
namespace {

// Unicode composes Hangul syllables by arithmetic from a leading consonant, a vowel and a trailing
// consonant.
constexpr uint32_t kSyllable = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr uint32_t kLeadings = 19, kVowels = 21, kTrailings = 28;
constexpr uint32_t kSyllables = kLeadings * kVowels * kTrailings;

struct Tables {
  std::vector<uint8_t> combining;  // canonical combining class by code point
  // Code point -> its canonical decomposition, one step.
  std::unordered_map<uint32_t, const Decomposition*> parts;
  // first << 32 | second -> composed code point, for pairs that NFC composes.
  std::unordered_map<uint64_t, uint32_t> composed;
  // True for characters that never change under NFC unless an active character follows.
  std::vector<bool> inert;
};

void mark_inert(Tables& tables) {
  tables.inert.assign(kCodePoints, true);
  const auto active = [&](uint32_t code) { tables.inert[code] = false; };
  for (uint32_t code = 0; code < kCodePoints; ++code) {
    if (tables.combining[code] != 0) active(code);
  }
  for (const Decomposition& d : kDecompositions) {
    // A character whose parts compose again changes only if an active character follows it.
    if (!d.composes) active(d.composed);
    if (d.second != 0) active(d.second);
  }
  for (uint32_t i = 0; i < kVowels; ++i) active(kVowel + i);
  for (uint32_t i = 0; i < kTrailings; ++i) active(kTrailing + i);
}

const Tables& tables() {
  static const Tables built = [] {
    Tables t;
    t.combining.assign(kCodePoints, 0);
    for (const Range& range : kCombiningRanges) {
      std::fill(t.combining.begin() + range.first, t.combining.begin() + range.last + 1,
                range.value);
    }
    for (const Decomposition& d : kDecompositions) {
      t.parts.emplace(d.composed, &d);
      if (d.composes) t.composed.emplace(uint64_t{d.first} << 32 | d.second, d.composed);
    }
    mark_inert(t);
    return t;
  }();
  return built;
}

void decompose(uint32_t code, std::vector<uint32_t>& out) {
  if (code - kSyllable < kSyllables) {
    const uint32_t index = code - kSyllable;
    out.push_back(kLeading + index / (kVowels * kTrailings));
    out.push_back(kVowel + index % (kVowels * kTrailings) / kTrailings);
    if (index % kTrailings != 0) out.push_back(kTrailing + index % kTrailings);
    return;
  }
  const auto found = tables().parts.find(code);
  if (found == tables().parts.end()) {
    out.push_back(code);
    return;
  }
  decompose(found->second->first, out);  // the table nests at most four levels
  if (found->second->second != 0) decompose(found->second->second, out);
}

/// Returns the composed character, or 0 if the pair does not compose.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLeading < kLeadings && second - kVowel < kVowels) {
    return kSyllable + ((first - kLeading) * kVowels + (second - kVowel)) * kTrailings;
  }
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTrailings == 0 &&
      second - kTrailing - 1 < kTrailings - 1) {
    return first + (second - kTrailing);
  }
  const auto found = tables().composed.find(uint64_t{first} << 32 | second);
  return found == tables().composed.end() ? 0 : found->second;
}

/// Sorts each run of marks by combining class; the sort is stable.
void reorder(std::vector<uint32_t>& codes) {
  const std::vector<uint8_t>& combining = tables().combining;
  const auto is_mark = [&](uint32_t c) { return combining[c] != 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), is_mark);
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    std::stable_sort(begin, end,
                     [&](uint32_t a, uint32_t b) { return combining[a] < combining[b]; });
    begin = end;
  }
}

/// Composes each character with the last starter unless a mark between them blocks it.
void recompose(std::vector<uint32_t>& codes) {
  const std::vector<uint8_t>& combining = tables().combining;
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone, kept = 0;
  int last_class = -1;  // class of the last mark after the starter; -1 if there is none
  for (const uint32_t code : codes) {
    const int here = combining[code];
    if (starter != kNone && last_class < here) {
      if (const uint32_t joined = compose(codes[starter], code); joined != 0) {
        codes[starter] = joined;
        continue;
      }
    }
    if (here == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = here;
    }
    codes[kept++] = code;
  }
  codes.resize(kept);
}

}  // namespace

std::string nfc(std::string_view text) {
  const Tables& t = tables();
  std::string out;
  out.reserve(text.size());
  std::vector<uint32_t> codes;  // a run that may change, with the starter before it
  size_t done = 0;              // text before this position is in out
  const auto flush = [&](size_t end) {
    if (!codes.empty()) {
      reorder(codes);
      recompose(codes);
      for (const uint32_t code : codes) append_utf8(code, out);
      codes.clear();
    }
    done = end;
  };
  size_t inert_begin = 0;  // start of the character before `at`, if it is inert
  bool inert_before = false;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const bool inert = c.code == Character::kInvalid || t.inert[c.code];
    if (inert) {
      if (!codes.empty()) flush(at);
    } else {
      if (codes.empty()) {
        const bool take =
            inert_before && character_at(text, inert_begin).code != Character::kInvalid;
        const size_t begin = take ? inert_begin : at;
        out.append(text, done, begin - done);
        if (take) decompose(character_at(text, inert_begin).code, codes);
      }
      decompose(c.code, codes);
    }
    inert_before = inert;
    inert_begin = at;
    at += c.size;
    if (!inert) done = at;
  }
  if (!codes.empty()) flush(text.size());
  out.append(text, done, text.size() - done);
  return out;
}

}  // namespace diffattn::io::unicode
