// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// Matchers for the published word patterns. Each reads every character a bounded number of times.
// A regular-expression engine would backtrack: on hostile text it may take quadratic time or
// overflow the stack.

namespace diffattn::io {

enum class Pattern { kGpt2, kLlama3, kQwen2, kO200k };

/// Returns the pattern of a published regular expression, or nullopt for any other.
std::optional<Pattern> find_pattern(std::string_view expression);
/// Returns the regular expression that we write to files.
std::string_view expression_of(Pattern pattern);

/// Returns the end of the match that begins at `at`. Every pattern matches at every position, so
/// matches follow each other without gaps.
size_t match_end(Pattern pattern, std::string_view text, size_t at);

}  // namespace diffattn::io
