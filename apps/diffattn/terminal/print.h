// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

// Every line of the program goes through print_out() or print_note(). Only the progress bar and
// print_drawing() write control sequences.

namespace diffattn::app {

/// Returns text that cannot control a terminal. Line feeds and tabs stay. Other control characters
/// become `\u001b`, and bytes that are not UTF-8 become `\x9b`.
std::string terminal_text(std::string_view text);

/// Writes text to a stream: through terminal_text() if the stream is a terminal, otherwise
/// unchanged.
void write_text(std::FILE* stream, std::string_view text);

/// Prints a result to standard output.
template <typename... Values>
void print_out(fmt::format_string<Values...> format, Values&&... values) {
  write_text(stdout, fmt::format(format, std::forward<Values>(values)...));
}

/// Prints a drawing with control sequences of its own, such as colours, to standard output. The
/// caller has made all text in it safe.
void print_drawing(std::string_view drawing);

/// Prints a note, a warning or an error to standard error.
template <typename... Values>
void print_note(fmt::format_string<Values...> format, Values&&... values) {
  write_text(stderr, fmt::format(format, std::forward<Values>(values)...));
}

}  // namespace diffattn::app
