// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/document.h"

#include <algorithm>
#include <optional>

#include "diffattn/io/error.h"
#include "diffattn/io/tokenizer.h"
#include "io/json_events.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxOtherValues = size_t{1} << 20;
// Bytes per table entry, including the unused capacity of a growing vector. most_entries() limits
// each table to twice the file size plus 64 MiB; ordinary files stay far below that.
constexpr size_t kTokenCost = 96;
constexpr size_t kMergeCost = 144;

size_t most_entries(size_t file_size, size_t cost) {
  return std::min(kMaxVocabulary, (2 * file_size + (size_t{64} << 20)) / cost);
}

/// Parses the file. Values inside model.vocab and model.merges go to the tables, all others to
/// `rest`.
class DocumentEvents final : public JsonEvents {
 public:
  DocumentEvents(std::string_view text, const std::string& file)
      : JsonEvents(text, file, 0),
        max_tokens_(most_entries(text.size(), kTokenCost)),
        max_merges_(most_entries(text.size(), kMergeCost)) {}

  TokenizerDocument take() { return std::move(document_); }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override { return value(json(v)); }
  bool string(string_t& v) override {
    if (table_ == Table::kMerges) return merge_text(v);
    return value(json(std::move(v)));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (table_ != Table::kVocabulary) return value(json(v));
    document_.vocabulary.back().id = v;
    return true;
  }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (table_ == Table::kVocabulary) {
      check_token(name);
      if (document_.vocabulary.size() >= max_tokens_) {
        fail("at most " + std::to_string(max_tokens_) + " tokens", "more");
      }
      document_.vocabulary.push_back({std::move(name), 0, token_begin()});
      return true;
    }
    auto [place, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name, nullptr);
    if (!is_new) fail("unique keys", "a second " + in_quotes(name));
    member_ = &place->second;
    keys_.back() = name;
    return true;
  }

 protected:
  bool real(double v) override { return value(json(v)); }

 private:
  enum class Table { kNone, kVocabulary, kMerges };

  [[noreturn]] void refuse() const {
    if (table_ == Table::kVocabulary) fail("the id of a token", in_quotes(token()));
    fail("a merge, \"a b\" or [\"a\", \"b\"]", in_quotes(token()));
  }

  void check_token(const std::string& text) const {
    if (text.empty() || text.size() > kMaxTokenBytes) {
      fail("a token of 1 to " + std::to_string(kMaxTokenBytes) + " bytes",
           "one of " + std::to_string(text.size()));
    }
  }

  bool value(json&& v) {
    if (table_ != Table::kNone) refuse();
    add(std::move(v));
    return true;
  }

  json* add(json&& v) {
    if (++values_ > kMaxOtherValues) {
      fail("at most " + std::to_string(kMaxOtherValues) + " values outside the tables", "more");
    }
    if (open_.empty()) {
      document_.rest = std::move(v);
      return &document_.rest;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(v);
      return member_;
    }
    auto& elements = open_.back()->get_ref<json::array_t&>();
    elements.push_back(std::move(v));
    return &elements.back();
  }

  bool open(json&& container) {
    if (table_ == Table::kMerges && container.is_array() && !pair_) {
      pair_ = 0;
      add_merge();
      return true;
    }
    if (table_ != Table::kNone) refuse();
    if (keys_.size() == 2 && keys_[0] == "model" && keys_[1] == "vocab" && container.is_object()) {
      table_ = Table::kVocabulary;
      document_.has_vocabulary = true;
      return true;
    }
    if (keys_.size() == 2 && keys_[0] == "model" && keys_[1] == "merges" && container.is_array()) {
      table_ = Table::kMerges;
      document_.has_merges = true;
      return true;
    }
    if (open_.size() >= kMaxDepth) {
      fail("nesting no deeper than " + std::to_string(kMaxDepth), "one level more");
    }
    open_.push_back(add(std::move(container)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    if (pair_) {
      if (*pair_ != 2) fail("two tokens in a merge", std::to_string(*pair_));
      pair_.reset();
      return true;
    }
    if (table_ != Table::kNone) {
      table_ = Table::kNone;
      return true;
    }
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  void add_merge() {
    if (document_.merges.size() >= max_merges_) {
      fail("at most " + std::to_string(max_merges_) + " merges", "more");
    }
    document_.merges.push_back({"", "", token_begin()});
  }

  bool merge_text(std::string& text) {
    if (pair_) {
      check_token(text);
      if (*pair_ >= 2) fail("two tokens in a merge", "a third one");
      auto& merge = document_.merges.back();
      (*pair_ == 0 ? merge.first : merge.second) = std::move(text);
      ++*pair_;
      return true;
    }
    if (text.starts_with("#version")) return true;  // the first line of a merges.txt
    const size_t space = text.find(' ');
    if (space == text.npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != text.npos) {
      fail("a merge of two tokens with one space between them", in_quotes(text));
    }
    add_merge();
    document_.merges.back().first = text.substr(0, space);
    document_.merges.back().second = text.substr(space + 1);
    return true;
  }

  size_t max_tokens_, max_merges_;
  TokenizerDocument document_;
  Table table_ = Table::kNone;
  std::optional<int> pair_;        // inside a merge that is an array: tokens so far
  std::vector<json*> open_;        // open containers, outermost first
  std::vector<std::string> keys_;  // current key in each of them; "" in arrays
  json* member_ = nullptr;
  size_t values_ = 0;
};

}  // namespace

TokenizerDocument parse_tokenizer_document(std::string_view text, const std::string& file) {
  DocumentEvents events(text, file);
  events.run();
  return events.take();
}

}  // namespace diffattn::io
