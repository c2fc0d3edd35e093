// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/error.h"

namespace diffattn {

/// Throws an `Error` that names the wrong argument, the expected value and the actual one.
[[noreturn]] inline void throw_argument_error(const std::string& argument,
                                              const std::string& expected, const std::string& got) {
  throw Error("diffattn: argument '" + argument + "': expected " + expected + ", got " + got);
}

}  // namespace diffattn
