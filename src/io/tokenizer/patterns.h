// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// PRIVATE header of the io layer: the published word patterns, each with a matcher of its own that
// looks at every character a bounded number of times. The regular expressions they replace
// backtrack; on hostile text the usual engines then take quadratic time or overflow the stack.

namespace diffattn::io {

enum class Pattern { kGpt2, kLlama3, kQwen2, kO200k };

/// The pattern a regular expression stands for, if it is one of the published ones.
std::optional<Pattern> find_pattern(std::string_view expression);
/// The expression as files carry it.
std::string_view expression_of(Pattern pattern);

/// Where the match that begins at `at` ends. Each pattern matches at every position inside text,
/// so matches follow each other without gaps.
std::size_t match_end(Pattern pattern, std::string_view text, std::size_t at);

}  // namespace diffattn::io
