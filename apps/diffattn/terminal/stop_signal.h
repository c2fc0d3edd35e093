// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace diffattn::app {

/// Returns true if the running verb should stop.
using StopRequested = bool (*)();

/// Sets the function that verbs of this thread ask instead of handling signals; null for none. A
/// host process such as Python handles signals itself.
void set_stop_requested(StopRequested stop);

/// Thrown by check_interrupt().
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("stopped") {}
};

/// Throws Interrupted if the host process asks for it. For verbs that have nothing to save: in the
/// program, signals end them.
void check_interrupt();

/// A scope in which SIGTERM, SIGINT and SIGUSR1 request a stop instead of ending the process. A
/// second signal ends the process at once. Only one object may exist at a time. In a host process
/// it leaves the signals alone and asks the host.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// True if a stop was requested.
  bool received() const;
};

}  // namespace diffattn::app
