// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace diffattn {

/// What this library throws when it was called wrongly or a device failed. From Python it arrives
/// as a RuntimeError with the same text.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The one form of a complaint about an argument: its name, what was expected, what came.
[[noreturn]] inline void throw_argument_error(const std::string& argument,
                                              const std::string& expected, const std::string& got) {
  throw Error("diffattn: argument '" + argument + "': expected " + expected + ", got " + got);
}

}  // namespace diffattn
