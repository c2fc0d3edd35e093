// SPDX-License-Identifier: Apache-2.0
#include "io/text.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

constexpr size_t kPatience = 16;  // chunks to search for a space after a letter before giving up

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Returns the last position between a letter and a space, or 0 if there is none.
size_t word_cut(std::string_view text) {
  for (size_t at = text.rfind(' '); at != text.npos && at > 0; at = text.rfind(' ', at - 1)) {
    if (is_letter(text[at - 1])) return at;
  }
  return 0;
}

size_t any_cut(std::string_view text) {
  const size_t line = text.rfind('\n');
  if (line != text.npos) return line + 1;
  return text.size() - unicode::incomplete_tail(text);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j + 1] + 1, row[j] + 1, above[j] + (a[i] == b[j] ? 0 : 1)});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
      }
    }
    before = std::exchange(above, row);
  }
  return above.back();
}

TextChunks::TextChunks(const std::string& path, size_t chunk_bytes)
    : file_(File::open(path)), chunk_bytes_(std::max<size_t>(chunk_bytes, 16)) {}

bool TextChunks::next(std::string& chunk) {
  chunk.clear();
  size_t cut = 0;
  while (cut == 0) {
    const uint64_t rest = file_.size() - read_to_;
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(chunk_bytes_, rest));
    const size_t before = held_.size();
    held_.resize(before + wanted);
    file_.read(read_to_, std::as_writable_bytes(std::span(held_).subspan(before)));
    read_to_ += wanted;
    if (read_to_ == file_.size()) {
      cut = held_.size();
      break;
    }
    cut = word_cut(held_);
    if (cut == 0 && held_.size() >= kPatience * chunk_bytes_) cut = any_cut(held_);
  }
  chunk.assign(held_, 0, cut);
  held_.erase(0, cut);
  position_ += cut;
  return cut > 0;
}

}  // namespace diffattn::io
