// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace diffattn::app {

/// Of the environment; empty where it is not set.
std::string_view variable(const char* name);

/// Whether `fd` is a terminal that understands more than text: TERM is set, and not to "dumb".
bool is_terminal(int fd);

/// Of the terminal that `fd` is; none where it is none, or does not say.
std::optional<int64_t> terminal_columns(int fd);

}  // namespace diffattn::app
