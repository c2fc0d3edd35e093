// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/decoder.h"

#include <optional>

#include "io/tokenizer/bpe.h"
#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/characters.h"

namespace diffattn::io {

Decoder::Decoder(const JsonValue& section) {
  if (section.is_null()) {
    separated_ = true;
  } else {
    add(section, 0);
  }
}

void Decoder::add(const JsonValue& section, int depth) {
  const std::string type = section_type(section);
  const JsonValue name = section.at("type");
  if (byte_level_ || first_without_spaces_) name.fail("no step after ByteLevel or Metaspace");
  if (type == "Sequence") {
    for_each_section(section, "decoders", depth, [&](const JsonValue& s) { add(s, depth + 1); });
  } else if (type == "ByteLevel") {
    if (byte_fallback_ || fused_ || !replaces_.empty()) name.fail("ByteLevel as the only step");
    byte_level_ = true;
  } else if (type == "Replace") {
    if (byte_fallback_ || fused_) name.fail("Replace before ByteFallback and Fuse");
    replaces_.push_back(
        {literal_pattern(section), section.at("content").to_string(kMaxTokenBytes)});
  } else if (type == "ByteFallback") {
    if (fused_) name.fail("ByteFallback before Fuse");
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip") {
    add_strip(section);
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else {
    name.fail("ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  }
}

void Decoder::add_strip(const JsonValue& section) {
  if (!fused_ || strip_most_ > 0) section.at("type").fail("one Strip, after Fuse");
  const JsonValue content = section.at("content");
  strip_ = content.to_string(4);
  if (strip_.empty() || unicode::character_at(strip_, 0).size != strip_.size()) {
    content.fail("one character");
  }
  strip_most_ = section.at("start").to_uint(0, 1024);
  section.at("stop").to_uint(0, 0);  // StreamDecoder cannot strip the end: it has returned it
}

void Decoder::add_metaspace(const JsonValue& section) {
  if (byte_fallback_ || fused_ || !replaces_.empty()) {
    section.at("type").fail("Metaspace as the only step");
  }
  const JsonValue replacement = section.at("replacement");
  if (replacement.to_string(4).empty()) replacement.fail("one character");
  replaces_.push_back({replacement.to_string(4), " "});
  first_without_spaces_ = flag(section, "add_prefix_space", true);
  if (const auto scheme = section.find("prepend_scheme")) {
    first_without_spaces_ = scheme->to_string(64) != "never";
  }
}

std::string Decoder::piece_of(std::string_view token) const {
  if (byte_level_) {
    // A token with characters outside the byte alphabet decodes to its own bytes.
    std::optional<std::string> bytes = from_visible(token);
    return bytes ? *std::move(bytes) : std::string(token);
  }
  std::string piece(token);
  for (const Replace& replace : replaces_) piece = replace_all(piece, replace.from, replace.to);
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
