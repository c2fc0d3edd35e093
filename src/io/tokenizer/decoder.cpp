// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/decoder.h"

#include <optional>

#include "io/tokenizer/bpe.h"
#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/characters.h"

namespace diffattn::io {

Decoder::Decoder(const JsonValue& section) : separated_(section.is_null()) {
  for_each_step(section, "decoders", [&](const JsonValue& step) { add(step); });
}

void Decoder::add(const JsonValue& step) {
  const std::string type = section_type(step);
  const JsonValue name = step.at("type");
  if (byte_level_ || first_without_spaces_) name.fail("no step after ByteLevel or Metaspace");
  if (type == "ByteLevel") {
    if (byte_fallback_ || fused_ || !replaces_.empty()) name.fail("ByteLevel as the only step");
    byte_level_ = true;
  } else if (type == "Replace") {
    if (byte_fallback_ || fused_) name.fail("Replace before ByteFallback and Fuse");
    replaces_.emplace_back(step);
  } else if (type == "ByteFallback") {
    if (fused_) name.fail("ByteFallback before Fuse");
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip") {
    add_strip(step);
  } else if (type == "Metaspace") {
    add_metaspace(step);
  } else {
    name.fail("ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  }
}

void Decoder::add_strip(const JsonValue& step) {
  if (!fused_ || strip_most_ > 0) step.at("type").fail("one Strip, after Fuse");
  const JsonValue content = step.at("content");
  strip_ = content.to_string(4);
  if (strip_.empty() || unicode::character_at(strip_, 0).size != strip_.size()) {
    content.fail("one character");
  }
  strip_most_ = step.at("start").to_uint(0, 1024);
  step.at("stop").to_uint(0, 0);  // StreamDecoder cannot strip the end: it has returned it
}

void Decoder::add_metaspace(const JsonValue& step) {
  if (byte_fallback_ || fused_ || !replaces_.empty()) {
    step.at("type").fail("Metaspace as the only step");
  }
  const JsonValue replacement = step.at("replacement");
  if (replacement.to_string(4).empty()) replacement.fail("one character");
  replaces_.emplace_back(step, replacement.to_string(4), " ");
  first_without_spaces_ = flag(step, "add_prefix_space", true);
  if (const auto scheme = step.find("prepend_scheme")) {
    first_without_spaces_ = scheme->to_string(64) != "never";
  }
}

std::string Decoder::piece_of(std::string_view token, GrowthBudget& budget) const {
  if (byte_level_) {
    // A token with characters outside the byte alphabet decodes to its own bytes.
    std::optional<std::string> bytes = from_visible(token);
    return bytes ? *std::move(bytes) : std::string(token);
  }
  std::string piece(token);
  for (const Replace& replace : replaces_) piece = replace.apply(piece, budget);
  budget.spend(piece.size());
  if (byte_fallback_) {
    if (const auto byte = byte_of_token(piece)) return std::string(1, static_cast<char>(*byte));
  }
  return piece;
}

void Decoder::append(std::string_view piece, State& state, std::string& out) const {
  if (separated_ && state.any) out += ' ';
  const bool first = !state.any;
  state.any = true;
  if (first && first_without_spaces_) {
    out += replace_all(piece, " ", "");
    return;
  }
  while (state.begin && state.stripped < strip_most_ && piece.starts_with(strip_)) {
    piece.remove_prefix(strip_.size());
    ++state.stripped;
  }
  if (!piece.empty()) state.begin = false;
  out += piece;
}

}  // namespace diffattn::io
