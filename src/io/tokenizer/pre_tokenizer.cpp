// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/pre_tokenizer.h"

#include "diffattn/io/error.h"
#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/replace.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/characters.h"

namespace diffattn::io {

PreTokenizer::PreTokenizer(const JsonValue& section) {
  for_each_step(section, "pretokenizers", [&](const JsonValue& step) { add(step); });
}

void PreTokenizer::add(const JsonValue& step) {
  const std::string type = section_type(step);
  // After ByteLevel the text is in the byte alphabet, where the patterns of other steps would not
  // match.
  if (byte_level_) step.at("type").fail("ByteLevel as the last step");
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (flag(step, "add_prefix_space", true)) {
      steps_.push_back({.kind = Step::Kind::kPrefixSpace});
    }
    if (flag(step, "use_regex", true)) steps_.push_back({.pattern = Pattern::kGpt2});
  } else if (type == "Split") {
    add_split(step);
  } else if (type == "Digits") {
    steps_.push_back({.kind = Step::Kind::kDigits, .each = flag(step, "individual_digits", false)});
  } else if (type == "Metaspace") {
    add_metaspace(step);
  } else {
    step.at("type").fail("ByteLevel, Split, Digits, Metaspace or Sequence");
  }
}

void PreTokenizer::add_split(const JsonValue& section) {
  const JsonValue pattern = section.at("pattern");
  if (!pattern.is_object() || !pattern.find("Regex")) pattern.fail("{\"Regex\": expression}");
  const std::string& expression = pattern.at("Regex").to_string(kMaxTokenBytes);
  const auto known = find_pattern(expression);
  if (!known) {
    // Messages usually show 64 bytes. This one shows the whole expression, so that users can search
    // for it.
    std::string shown;
    for (size_t at = 0; at < expression.size(); at += 64) {
      const std::string part = in_quotes(std::string_view(expression).substr(at, 64));
      shown += part.substr(1, part.size() - 2);
    }
    throw Error(section.file(), "key '" + pattern.at("Regex").path() +
                                    "': expected the pattern of GPT-2, Llama 3, Qwen 2 or o200k, "
                                    "got '" +
                                    shown + "'");
  }
  const JsonValue behavior = section.at("behavior");
  const std::string& name = behavior.to_string(64);
  // Matches leave no gaps, so "Isolated" and "Removed" with invert give the same words.
  const bool invert = flag(section, "invert", false);
  if (name != "Isolated" && !(name == "Removed" && invert)) {
    behavior.fail("Isolated, or Removed with invert");
  }
  steps_.push_back({.pattern = *known});
}

void PreTokenizer::add_metaspace(const JsonValue& section) {
  // Each Metaspace can lengthen every word, and Digits can split the longer words again: a chain of
  // both doubles the text at every turn.
  for (const Step& earlier : steps_) {
    if (earlier.kind == Step::Kind::kMetaspace) section.at("type").fail("one Metaspace");
  }
  Step step{.kind = Step::Kind::kMetaspace};
  const JsonValue replacement = section.at("replacement");
  step.replacement = replacement.to_string(4);
  if (step.replacement.empty() ||
      unicode::character_at(step.replacement, 0).size != step.replacement.size()) {
    replacement.fail("one character");
  }
  step.each = flag(section, "split", true);
  step.prepend =
      flag(section, "add_prefix_space", true) ? Step::Prepend::kAlways : Step::Prepend::kNever;
  if (const auto scheme = section.find("prepend_scheme")) {
    const std::string& name = scheme->to_string(64);
    if (name == "always") {
      step.prepend = Step::Prepend::kAlways;
    } else if (name == "first") {
      step.prepend = Step::Prepend::kFirst;
    } else if (name == "never") {
      step.prepend = Step::Prepend::kNever;
    } else {
      scheme->fail("always, first or never");
    }
  }
  steps_.push_back(std::move(step));
}

std::string PreTokenizer::rewritten(const Step& step, std::string_view piece, bool first) {
  if (step.kind == Step::Kind::kPrefixSpace) {
    std::string text(piece.front() == ' ' ? "" : " ");
    return text.append(piece);
  }
  std::string text = replace_all(piece, " ", step.replacement);
  const bool prepend =
      step.prepend == Step::Prepend::kAlways || (step.prepend == Step::Prepend::kFirst && first);
  if (prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
  return text;
}

size_t PreTokenizer::piece_end(const Step& step, std::string_view text, size_t at) {
  if (step.kind == Step::Kind::kPattern) return match_end(step.pattern, text, at);
  if (step.kind == Step::Kind::kMetaspace) {
    const size_t found = text.find(step.replacement, at + 1);
    return found == text.npos ? text.size() : found;
  }
  const auto is_number = [&](size_t i) {
    return (unicode::class_at(text, i) & unicode::kNumber) != 0;
  };
  const bool number = is_number(at);
  size_t end = at + unicode::character_at(text, at).size;
  if (number && step.each) return end;
  while (end < text.size() && is_number(end) == number) {
    end += unicode::character_at(text, end).size;
  }
  return end;
}

}  // namespace diffattn::io
