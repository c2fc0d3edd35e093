// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/tokenizer_json.h"

#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/impl.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

std::string literal(std::string_view text) { return json(text).dump(); }

void write_vocabulary(const TokenizerContent& content, std::string& out) {
  out += "    \"vocab\": {";
  bool first = true;
  for (TokenId id = 0; id < content.in_model.size(); ++id) {
    if (!content.in_model[id]) continue;
    out += first ? "\n" : ",\n";
    out += "      " + literal(content.vocabulary.token(id)) + ": " + std::to_string(id);
    first = false;
  }
  out += "\n    },\n";
}

/// True if merges must be written as ["a", "b"]. Every reader knows the older form "a b", but it is
/// ambiguous for tokens with spaces.
bool needs_pairs(const TokenizerContent& content) {
  for (const Merge& merge : content.merges) {
    const std::string_view first = content.vocabulary.token(merge.first);
    const std::string_view second = content.vocabulary.token(merge.second);
    if (first.find(' ') != first.npos || second.find(' ') != second.npos) return true;
    if (first.starts_with("#version"))
      return true;  // readers would skip it as the first line of a merges.txt
  }
  return false;
}

void write_merges(const TokenizerContent& content, std::string& out) {
  const bool pairs = needs_pairs(content);
  out += "    \"merges\": [";
  bool any = false;
  for (const Merge& merge : content.merges) {
    out += any ? ",\n      " : "\n      ";
    const std::string_view first = content.vocabulary.token(merge.first);
    const std::string_view second = content.vocabulary.token(merge.second);
    if (pairs) {
      out += "[" + literal(first) + ", " + literal(second) + "]";
    } else {
      out += literal(std::string(first).append(" ").append(second));
    }
    any = true;
  }
  out += any ? "\n    ]" : "]";
}

json added_json(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

}  // namespace

std::string write_tokenizer_json(const TokenizerContent& content) {
  std::string out = "{\n";
  for (const char* key : {"version", "truncation", "padding"}) {
    const json value = content.sections.value(key, json(nullptr));
    out += "  \"" + std::string(key) + "\": " + value.dump() + ",\n";
  }
  out += "  \"added_tokens\": [";
  for (size_t i = 0; i < content.added.size(); ++i) {
    out += (i == 0 ? "\n    " : ",\n    ") + added_json(content.added[i]).dump();
  }
  out += content.added.empty() ? "],\n" : "\n  ],\n";
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    const json value = content.sections.value(key, json(nullptr));
    out += "  \"" + std::string(key) + "\": " + value.dump() + ",\n";
  }
  out += "  \"model\": {\n";
  for (const auto& [key, value] : content.sections.at("model").items()) {
    out += "    " + literal(key) + ": " + value.dump() + ",\n";
  }
  write_vocabulary(content, out);
  write_merges(content, out);
  return out + "\n  }\n}\n";
}

json byte_level_step() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

json byte_level_sections(json normalizer, json pre_tokenizer) {
  return {{"version", "1.0"},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", byte_level_step()},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false}}}};
}

std::string Tokenizer::Impl::to_json() const {
  return write_tokenizer_json({sections, vocabulary, in_model, merges, added});
}

Tokenizer Tokenizer::bytes() {
  Vocabulary vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary.add(visible(static_cast<uint8_t>(byte)), byte);
  }
  vocabulary.add(kEndOfText, 256);
  const json sections = byte_level_sections(nullptr, byte_level_step());
  const std::vector<AddedToken> added = {{.content = kEndOfText, .id = 256, .special = true}};
  // kEndOfText is also in model.vocab, so that every reader gives it the same id.
  const std::vector<bool> in_model(257, true);
  return parse(write_tokenizer_json({sections, vocabulary, in_model, {}, added}), "bytes");
}

}  // namespace diffattn::io
