// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// Turns tokens back into bytes, one at a time.
class Decoder {
 public:
  /// How far a text has come; what the first token gives depends on it.
  struct State {
    bool any = false;          // a token was decoded
    std::size_t stripped = 0;  // characters left out at the begin of the text
    bool begin = true;         // nothing but such characters so far
  };

  Decoder() = default;
  /// The `decoder` of a file, null for none: tokens then are separated by spaces, as the reference
  /// implementation does. Throws Error for what is not known.
  explicit Decoder(const JsonValue& section);

  /// What a token stands for wherever it is; decoded once, when the tokenizer is made.
  std::string piece_of(std::string_view token) const;
  /// Appends a token's piece to out, as it reads at this place of the text.
  void append(std::string_view piece, State& state, std::string& out) const;

 private:
  void add(const JsonValue& section, int depth);
  void add_strip(const JsonValue& section);
  void add_metaspace(const JsonValue& section);

  struct Replace {
    std::string from, to;
  };
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  bool separated_ = false;  // by spaces
  std::vector<Replace> replaces_;
  std::string strip_;           // character to leave out at the begin
  std::size_t strip_most_ = 0;  // of the text, at most so often
  // A Metaspace: spaces that the first token consists of or holds are left out.
  bool first_without_spaces_ = false;
};

}  // namespace diffattn::io
