// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace diffattn::app {

/// Thrown by check_interrupt() if the host process asks the running verb to stop.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("diffattn: interrupted") {}
};

/// Returns true if the running verb should stop.
using StopRequested = bool (*)();

/// Sets the function that check_interrupt() calls; null for none. A host process such as Python
/// handles signals itself. The program sets none: a signal ends it.
void set_stop_requested(StopRequested stop);

/// Throws Interrupted if the host process asks for it. Long verbs call this through ProgressBar.
void check_interrupt();

}  // namespace diffattn::app
