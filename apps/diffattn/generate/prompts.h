// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"

namespace diffattn::app {

using Ids = std::vector<int64_t>;

/// Prompts as ids, and as texts unless they were given as ids. A prompt with several samples is in
/// the list as many times.
struct Prompts {
  std::vector<Ids> ids;
  std::vector<std::string> texts;

  /// Returns the text of prompt i, or an empty string.
  const std::string& text(size_t i) const;
  /// Repeats each prompt `count` times.
  Prompts repeated(int64_t count) const;
};

/// Encodes texts.
Prompts encoded_prompts(std::vector<std::string> texts, const io::Tokenizer& tokenizer);

/// Returns the lines of a file, a pipe or, for "-", standard input, without empty ones. Throws
/// io::Error if a read fails, if there is no line, or beyond 64 MiB.
std::vector<std::string> prompt_lines(const std::string& path);

}  // namespace diffattn::app
