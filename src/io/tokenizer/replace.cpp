// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/replace.h"

#include <algorithm>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/tokenizer.h"

namespace diffattn::io {
namespace {

size_t most_bytes(size_t bytes, size_t factor) {
  if (bytes > kMaxTextBytes / factor) return kMaxTextBytes;
  return std::min(kMaxTextBytes, bytes * factor + GrowthBudget::kAllowance);
}

std::string literal_pattern(const JsonValue& section) {
  const JsonValue pattern = section.at("pattern");
  if (!pattern.is_object() || !pattern.find("String")) pattern.fail("{\"String\": text}");
  std::string text = pattern.at("String").to_string(kMaxTokenBytes);
  if (text.empty()) pattern.at("String").fail("a non-empty string");
  return text;
}

size_t count_of(std::string_view text, std::string_view wanted) {
  size_t count = 0;
  for (size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return count;
}

}  // namespace

GrowthBudget::GrowthBudget(size_t bytes, size_t factor)
    : bytes_(bytes), most_(most_bytes(bytes, factor)) {}

void GrowthBudget::check(size_t bytes, const StepPlace& step) const {
  if (bytes <= most_ - std::min(most_, spent_)) return;
  throw Error(step.file, "key '" + step.path + "': expected steps that turn " +
                             std::to_string(bytes_) + " bytes of text into at most " +
                             std::to_string(most_) + ", got more");
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out.append(text, at, found == text.npos ? text.npos : found - at);
    if (found == text.npos) return out;
    out.append(to);
    at = found + from.size();
  }
}

Replace::Replace(const JsonValue& section)
    : Replace(section, literal_pattern(section), section.at("content").to_string(kMaxTokenBytes)) {}

Replace::Replace(const JsonValue& section, std::string from, std::string to)
    : place_(section), from_(std::move(from)), to_(std::move(to)) {}

std::string Replace::apply(std::string_view text, const GrowthBudget& budget) const {
  if (to_.size() > from_.size()) {
    budget.check(text.size() + count_of(text, from_) * (to_.size() - from_.size()), place_);
  }
  return replace_all(text, from_, to_);
}

}  // namespace diffattn::io
