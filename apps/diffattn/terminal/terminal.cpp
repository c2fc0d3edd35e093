// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace diffattn::app {

std::string_view environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_terminal(int fd) {
  const std::string_view term = environment_variable("TERM");
  return isatty(fd) == 1 && !term.empty() && term != "dumb";
}

std::optional<int64_t> terminal_columns(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace diffattn::app
