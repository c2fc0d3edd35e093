// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"
#include "io/tokenizer/replace.h"

namespace diffattn::io {

/// Converts tokens to bytes, one at a time.
class Decoder {
 public:
  /// The state of a text that is being decoded; the first tokens decode differently.
  struct State {
    bool any = false;     // a token was decoded
    size_t stripped = 0;  // characters stripped at the start of the text
    bool begin = true;    // the text has only stripped characters so far
  };

  Decoder() = default;
  /// Reads the `decoder` section of a file. Throws Error for unknown steps. If the section is null,
  /// spaces separate the tokens, as in the reference implementation.
  explicit Decoder(const JsonValue& section);

  /// Returns the text of a token at any position but the first. The tokenizer calls this once for
  /// every token, with one budget for all; throws Error if the pieces exceed it.
  std::string piece_of(std::string_view token, GrowthBudget& budget) const;
  /// Appends the text of a token to out and applies the rules for the start of the text.
  void append(std::string_view piece, State& state, std::string& out) const;

 private:
  void add(const JsonValue& step);
  void add_strip(const JsonValue& step);
  void add_metaspace(const JsonValue& step);

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  bool separated_ = false;  // spaces separate the tokens
  std::vector<Replace> replaces_;
  std::string strip_;      // character to strip at the start of the text
  size_t strip_most_ = 0;  // maximum number of characters to strip
  // Metaspace: removes all spaces from the first token.
  bool first_without_spaces_ = false;
};

}  // namespace diffattn::io
