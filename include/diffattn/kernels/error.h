// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace diffattn {

/// Thrown for a wrong argument or a failed device operation. Python raises it as a RuntimeError
/// with the same text.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws an `Error` that names the wrong argument, the expected value and the actual one.
[[noreturn]] inline void throw_argument_error(const std::string& argument,
                                              const std::string& expected, const std::string& got) {
  throw Error("diffattn: argument '" + argument + "': expected " + expected + ", got " + got);
}

}  // namespace diffattn
