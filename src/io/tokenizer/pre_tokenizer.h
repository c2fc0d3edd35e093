// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"
#include "io/tokenizer/patterns.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// Cuts text into the words inside which pairs are merged.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// The `pre_tokenizer` of a file, null for none. Throws Error for what is not known.
  explicit PreTokenizer(const JsonValue& section);

  /// Whether words are bytes, to be looked up in the byte alphabet.
  bool byte_level() const { return byte_level_; }
  /// Whether text comes out as it went in, in one piece.
  bool empty() const { return steps_.empty(); }

  /// Calls word(view) for each word. first says that piece begins where the whole text does. Views
  /// hold for the time of the call.
  template <typename Word>
  void apply(std::string_view piece, bool first, Word&& word) const {
    run(0, piece, first, word);
  }

 private:
  struct Step {
    enum class Kind { kPattern, kDigits, kPrefixSpace, kMetaspace } kind = Kind::kPattern;
    enum class Prepend { kAlways, kFirst, kNever } prepend = Prepend::kNever;
    Pattern pattern = Pattern::kGpt2;
    bool each = false;  // kDigits: each digit is a word; kMetaspace: split before replacement
    std::string replacement{};  // kMetaspace: stands for the space
  };

  void add(const JsonValue& section, int depth);
  void add_split(const JsonValue& section);
  void add_metaspace(const JsonValue& section);
  /// Where the next piece of a step that cuts ends.
  static std::size_t piece_end(const Step& step, std::string_view text, std::size_t at);
  /// The text a step makes of a piece, for the steps that change text.
  static std::string rewritten(const Step& step, std::string_view piece, bool first);

  template <typename Word>
  void run(std::size_t index, std::string_view piece, bool first, Word& word) const {
    if (piece.empty()) return;
    if (index == steps_.size()) {
      word(piece);
      return;
    }
    const Step& step = steps_[index];
    std::string owned;
    if (step.kind == Step::Kind::kPrefixSpace || step.kind == Step::Kind::kMetaspace) {
      owned = rewritten(step, piece, first);
      piece = owned;
      if (step.kind == Step::Kind::kPrefixSpace || !step.each) {
        run(index + 1, piece, first, word);
        return;
      }
    }
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t end = piece_end(step, piece, at);
      run(index + 1, piece.substr(at, end - at), first && at == 0, word);
      at = end;
    }
  }

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace diffattn::io
