// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"
#include "io/tokenizer/patterns.h"

namespace diffattn::io {

/// Splits text into words. Merges never cross a word's end.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Reads the `pre_tokenizer` section of a file, which may be null. Throws Error for unknown
  /// steps.
  explicit PreTokenizer(const JsonValue& section);

  /// True if tokens are written in the byte alphabet.
  bool byte_level() const { return byte_level_; }
  /// True if the whole text is one word.
  bool empty() const { return steps_.empty(); }

  /// Calls word(view) for each word. `first` is true if piece is the start of the text. A view is
  /// valid only during the call.
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
    std::string replacement{};  // kMetaspace: replaces a space
  };

  void add(const JsonValue& step);
  void add_split(const JsonValue& section);
  void add_metaspace(const JsonValue& section);
  /// Returns the end of the piece at `at`, for steps that split text.
  static size_t piece_end(const Step& step, std::string_view text, size_t at);
  /// Returns the rewritten piece, for steps that change text.
  static std::string rewritten(const Step& step, std::string_view piece, bool first);

  template <typename Word>
  void run(size_t index, std::string_view piece, bool first, Word& word) const {
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
    for (size_t at = 0; at < piece.size();) {
      const size_t end = piece_end(step, piece, at);
      run(index + 1, piece.substr(at, end - at), first && at == 0, word);
      at = end;
    }
  }

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace diffattn::io
