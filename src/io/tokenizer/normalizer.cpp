// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/normalizer.h"

#include "diffattn/io/error.h"
#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/nfc.h"

namespace diffattn::io {

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

std::string literal_pattern(const JsonValue& section) {
  const JsonValue pattern = section.at("pattern");
  if (!pattern.is_object() || !pattern.find("String")) pattern.fail("{\"String\": text}");
  std::string text = pattern.at("String").to_string(kMaxTokenBytes);
  if (text.empty()) pattern.at("String").fail("a non-empty string");
  return text;
}

Normalizer::Normalizer(const JsonValue& section) {
  if (!section.is_null()) add(section, 0);
}

void Normalizer::add(const JsonValue& section, int depth) {
  const std::string type = section_type(section);
  if (type == "Sequence") {
    for_each_section(section, "normalizers", depth, [&](const JsonValue& s) { add(s, depth + 1); });
  } else if (type == "NFC") {
    steps_.push_back({Step::Kind::kNfc, "", ""});
  } else if (type == "Replace") {
    steps_.push_back({Step::Kind::kReplace, literal_pattern(section),
                      section.at("content").to_string(kMaxTokenBytes)});
  } else if (type == "Prepend") {
    steps_.push_back({Step::Kind::kPrepend, "", section.at("prepend").to_string(kMaxTokenBytes)});
  } else {
    section.at("type").fail("NFC, Replace, Prepend or Sequence");
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kNfc: out = unicode::nfc(out); break;
      case Step::Kind::kReplace: out = replace_all(out, step.from, step.to); break;
      case Step::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
    }
  }
  return out;
}

}  // namespace diffattn::io
