// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/added_vocabulary.h"

#include "io/unicode/characters.h"

namespace diffattn::io {

using namespace unicode;

void TokenFinder::add(std::string_view text, const AddedToken& token) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t& next = node == 0 ? first_[byte] : step_[step_.pair_of(node, byte)];
    if (next == 0) {
      next = static_cast<uint32_t>(ends_.size());
      ends_.push_back(nullptr);
    }
    node = next;
  }
  if (ends_[node] == nullptr) ends_[node] = &token;
}

TokenFinder::Match TokenFinder::next(std::string_view text, size_t at) const {
  for (; at < text.size(); ++at) {
    uint32_t node = first_[static_cast<uint8_t>(text[at])];
    Match match;
    for (size_t end = at + 1; node != 0; ++end) {
      if (ends_[node] != nullptr) match = {ends_[node], at, end};
      if (end == text.size()) break;
      node = step_.find(step_.pair_of(node, static_cast<uint8_t>(text[end])));
    }
    if (match.token != nullptr) return match;
  }
  return {};
}

bool TokenFinder::fits(std::string_view text, size_t done, Match& match) {
  if (match.token->single_word) {
    if (match.begin > 0 && (class_at(text, previous_begin(text, match.begin)) & kWord))
      return false;
    if (match.end < text.size() && (class_at(text, match.end) & kWord)) return false;
  }
  if (match.token->lstrip) {
    while (match.begin > done) {
      const size_t before = previous_begin(text, match.begin);
      if (before < done || !(class_at(text, before) & kSpace)) break;
      match.begin = before;
    }
  }
  if (match.token->rstrip) {
    while (match.end < text.size() && (class_at(text, match.end) & kSpace)) {
      match.end += character_at(text, match.end).size;
    }
  }
  return true;
}

}  // namespace diffattn::io
