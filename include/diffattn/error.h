// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace diffattn {

/// The base class of the exceptions of this library. A wrong argument or a failed device operation
/// throws it as it is. A wrong file throws io::Error and a wrong run file train::ConfigError, which
/// derive from it. Python raises each as a RuntimeError with the same text.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace diffattn
