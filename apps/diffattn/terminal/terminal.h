// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace diffattn::app {

/// Returns an environment variable, or an empty string if it is not set.
std::string_view environment_variable(const char* name);

/// True if `fd` is a terminal with control sequences: TERM is set and is not "dumb".
bool is_terminal(int fd);

/// Returns the width of the terminal `fd`, or nothing if `fd` is no terminal or has no size.
std::optional<int64_t> terminal_columns(int fd);

}  // namespace diffattn::app
