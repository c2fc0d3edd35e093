// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "diffattn/io/error.h"
#include "io/tokenizer/document.h"
#include "io/tokenizer/impl.h"
#include "io/tokenizer/sections.h"
#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

/// Ids need not be contiguous, but tables by id must stay proportional to the file.
constexpr size_t kMaxHoles = size_t{1} << 16;
constexpr char kMarker[] = "\xe2\x96\x81";  // U+2581 marks a space at the start of a word

class TokenizerParser {
 public:
  TokenizerParser(std::string_view text, const std::string& file, Tokenizer::Impl& out)
      : document_(parse_tokenizer_document(text, file)), root_(document_.rest, file), out_(out) {}

  void run() {
    root_.at("model");
    if (!document_.has_vocabulary) model().at("vocab").fail("an object of tokens");
    if (!document_.has_merges) model().at("merges").fail("an array of merges");
    const Bpe::Settings settings = read_model_settings();
    read_vocabulary();
    read_added_tokens();
    read_merges();
    read_pipeline(settings);
    for_each_step(section("post_processor"), "processors",
                  [&](const JsonValue& step) { read_post_processor(step); });
    out_.sections = std::move(document_.rest);
    out_.sections.erase("added_tokens");
    auto& sections_model = out_.sections["model"];
    sections_model.erase("vocab");
    sections_model.erase("merges");
  }

 private:
  JsonValue model() const { return root_.at("model"); }

  /// Returns a section of the file, or null if it is missing.
  JsonValue section(std::string_view key) const {
    static const json kNull;
    const auto found = root_.find(key);
    return found ? *found : JsonValue(kNull, root_.file());
  }

  Bpe::Settings read_model_settings() {
    const JsonValue m = model();
    if (const auto type = m.find("type"); type && type->to_string(64) != "BPE") type->fail("BPE");
    if (const auto dropout = m.find("dropout")) dropout->to_double(0, 0);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const auto affix = m.find(key)) affix->to_string(0);
    }
    Bpe::Settings settings;
    settings.ignore_merges = flag(m, "ignore_merges", false);
    settings.byte_fallback = flag(m, "byte_fallback", false);
    settings.fuse_unknown = flag(m, "fuse_unk", false);
    return settings;
  }

  size_t id_limit() const {
    const auto added = root_.find("added_tokens");
    const size_t count = document_.vocabulary.size() + (added ? added->size() : 0);
    return std::min(kMaxVocabulary, 2 * count + kMaxHoles);
  }

  void read_vocabulary() {
    const size_t limit = id_limit();
    for (const auto& [token, id, offset] : document_.vocabulary) {
      if (id >= limit) {
        throw Error(root_.file(), offset,
                    "expected an id below " + std::to_string(limit) + " for token " +
                        in_quotes(token) + ", got " + std::to_string(id));
      }
      if (out_.vocabulary.find(token) != Vocabulary::kNone) {
        throw Error(root_.file(), offset,
                    "expected unique tokens, got a second " + in_quotes(token));
      }
      if (!out_.vocabulary.add(token, static_cast<TokenId>(id))) {
        throw Error(root_.file(), offset,
                    "expected unique ids, got " + std::to_string(id) + " for " + in_quotes(token) +
                        " and " + in_quotes(out_.vocabulary.token(static_cast<TokenId>(id))));
      }
    }
    out_.in_model.assign(out_.vocabulary.size(), false);
    for (const auto& entry : document_.vocabulary) out_.in_model[entry.id] = true;
    std::vector<TokenizerDocument::VocabularyEntry>().swap(document_.vocabulary);
  }

  void read_added_tokens() {
    const auto list = root_.find("added_tokens");
    if (!list) return;
    if (!list->is_array() || list->size() > kMaxAddedTokens) {
      list->fail("an array of at most " + std::to_string(kMaxAddedTokens) + " tokens");
    }
    const size_t limit =
        std::min(kMaxVocabulary, 2 * (out_.vocabulary.count() + list->size()) + kMaxHoles);
    StringMap seen;
    for (size_t i = 0; i < list->size(); ++i) {
      const JsonValue entry = list->at(i);
      AddedToken token;
      token.content = entry.at("content").to_string(kMaxTokenBytes);
      if (token.content.empty()) entry.at("content").fail("a non-empty token");
      token.id = static_cast<TokenId>(entry.at("id").to_uint(0, limit - 1));
      token.special = flag(entry, "special", false);
      token.single_word = flag(entry, "single_word", false);
      token.lstrip = flag(entry, "lstrip", false);
      token.rstrip = flag(entry, "rstrip", false);
      token.normalized = flag(entry, "normalized", !token.special);
      if (seen.insert(token.content, static_cast<uint32_t>(i)) != i) {
        entry.at("content").fail("a token that is not already listed");
      }
      const TokenId known = out_.vocabulary.find(token.content);
      if (known != Vocabulary::kNone) {
        entry.at("id").to_uint(known, known);
      } else if (!out_.vocabulary.add(token.content, token.id)) {
        entry.at("id").fail("an unused id");
      }
      out_.added.push_back(std::move(token));
    }
    out_.in_model.resize(out_.vocabulary.size(), false);
    out_.special.assign(out_.vocabulary.size(), false);
    for (const AddedToken& token : out_.added) out_.special[token.id] = token.special;
  }

  void read_merges() {
    const auto id_of = [&](std::string_view token, uint64_t offset) {
      const TokenId id = out_.vocabulary.find(token);
      if (id == Vocabulary::kNone || !out_.in_model[id]) {
        throw Error(root_.file(), offset,
                    "expected a merge of tokens in the vocabulary, got " + in_quotes(token) +
                        ", which is not in it");
      }
      return id;
    };
    out_.merges.reserve(document_.merges.size());
    for (const auto& [first, second, offset] : document_.merges) {
      out_.merges.push_back(
          {id_of(first, offset), id_of(second, offset), id_of(first + second, offset)});
    }
    std::vector<TokenizerDocument::MergeEntry>().swap(document_.merges);
  }

  void read_pipeline(Bpe::Settings settings) {
    out_.normalizer = Normalizer(section("normalizer"));
    out_.pre_tokenizer = PreTokenizer(section("pre_tokenizer"));
    out_.decoder = Decoder(section("decoder"));
    settings.byte_level = out_.pre_tokenizer.byte_level();
    if (const auto unknown = model().find("unk_token")) {
      settings.unknown = out_.vocabulary.find(unknown->to_string(kMaxTokenBytes));
      if (settings.unknown == Vocabulary::kNone) unknown->fail("a token of the vocabulary");
    }
    find_added_tokens();
    out_.bpe.emplace(out_.vocabulary, out_.merges, settings);
    if (!settings.byte_level && !settings.ignore_merges && words_end_at_markers()) {
      out_.cut_marker = kMarker;
    }
    make_pieces();
  }

  void find_added_tokens() {
    size_t bytes = 0;
    for (const AddedToken& token : out_.added) bytes += token.content.size();
    GrowthBudget budget(bytes, GrowthBudget::kTokenFactor);
    for (const AddedToken& token : out_.added) {
      if (token.normalized) {
        out_.normalized_tokens.add(out_.normalizer.apply(token.content, budget), token);
      } else {
        out_.raw_tokens.add(token.content, token);
      }
    }
  }

  void make_pieces() {
    size_t bytes = 0;
    for (TokenId id = 0; id < out_.vocabulary.size(); ++id) {
      bytes += out_.vocabulary.token(id).size();
    }
    GrowthBudget budget(bytes, GrowthBudget::kTokenFactor);
    out_.pieces.resize(out_.vocabulary.size());
    for (TokenId id = 0; id < out_.pieces.size(); ++id) {
      out_.pieces[id] = out_.decoder.piece_of(out_.vocabulary.token(id), budget);
    }
  }

  /// True if no merge joins a token with a following marker, except after another marker.
  bool words_end_at_markers() const {
    if (out_.vocabulary.find(kMarker) == Vocabulary::kNone) return false;
    return std::none_of(out_.merges.begin(), out_.merges.end(), [&](const Merge& merge) {
      return out_.vocabulary.token(merge.second).starts_with(kMarker) &&
             !out_.vocabulary.token(merge.first).ends_with(kMarker);
    });
  }

  void read_post_processor(const JsonValue& processor) {
    const std::string type = section_type(processor);
    if (type == "TemplateProcessing") {
      read_template(processor);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      out_.prefix.insert(out_.prefix.begin(), id_of_special(processor.at("cls").at(1)));
      out_.suffix.push_back(id_of_special(processor.at("sep").at(1)));
    } else if (type != "ByteLevel") {
      processor.at("type").fail(
          "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing or Sequence");
    }
  }

  TokenId id_of_special(const JsonValue& value) const {
    const uint64_t id = value.to_uint();
    if (id >= out_.vocabulary.size() || out_.vocabulary.token(static_cast<TokenId>(id)).empty()) {
      value.fail("the id of a token");
    }
    return static_cast<TokenId>(id);
  }

  void read_template(const JsonValue& processor) {
    const JsonValue single = processor.at("single");
    if (!single.is_array() || single.size() > 64) single.fail("an array of at most 64 parts");
    std::vector<TokenId> prefix;
    bool behind = false;
    for (size_t i = 0; i < single.size(); ++i) {
      const JsonValue part = single.at(i);
      if (const auto sequence = part.find("Sequence")) {
        if (sequence->at("id").to_string(8) != "A" || behind) part.fail("sequence A, once");
        behind = true;
        continue;
      }
      const std::string& name = part.at("SpecialToken").at("id").to_string(kMaxTokenBytes);
      const JsonValue ids = processor.at("special_tokens").at(name).at("ids");
      if (!ids.is_array() || ids.size() > 64) ids.fail("an array of at most 64 ids");
      for (size_t k = 0; k < ids.size(); ++k) {
        (behind ? out_.suffix : prefix).push_back(id_of_special(ids.at(k)));
      }
    }
    if (!behind) single.fail("sequence A among the parts");
    out_.prefix.insert(out_.prefix.begin(), prefix.begin(), prefix.end());
  }

  TokenizerDocument document_;
  JsonValue root_;
  Tokenizer::Impl& out_;
};

}  // namespace

std::shared_ptr<const Tokenizer::Impl> Tokenizer::Impl::parse(std::string_view json,
                                                              const std::string& file) {
  auto impl = std::make_shared<Impl>();
  TokenizerParser(json, file, *impl).run();
  return impl;
}

}  // namespace diffattn::io
