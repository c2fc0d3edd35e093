// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/stop_signal.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::python {

/// The verbs of a library, by name.
using Verbs = std::map<std::string, app::VerbAction (*)(CLI::App&)>;

/// Thrown by a verb for wrong arguments.
struct WrongUse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown by a verb for an error of torch that says that there was no memory.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// How Python calls a verb. ctypes releases the GIL during the call and takes it again for the two
/// functions. `give` receives the JSON result, or the text of an error.
struct VerbCall {
  std::string name;
  std::vector<std::string> arguments;
  app::StopRequested stop;
  void (*give)(const char*);
};

/// Runs a verb in this process. Returns its exit code, or one of the codes below after an error.
int run_verb(const Verbs& verbs, VerbCall call);

// python/diffattn_program/verbs.py has the same numbers. Smaller ones are exit codes of the verbs.
inline constexpr int kFailed = 100, kWrongUse = 101, kOutOfMemory = 102;

}  // namespace diffattn::python
