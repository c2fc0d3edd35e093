// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/io/tokenizer.h"

namespace diffattn::serve {

/// The bytes that a token alone stands for, and the string by which the API names it.
struct TokenText {
  std::string bytes;
  /// The bytes if they are valid UTF-8, else `bytes:\xe2\x80`, as in the OpenAI API. Special tokens
  /// are spelled out. Ids without a token have `<id>`.
  std::string name;
};
TokenText token_text(const io::Tokenizer& tokenizer, int64_t id);

/// Number of characters of valid UTF-8.
size_t character_count(const std::string& text);

}  // namespace diffattn::serve
