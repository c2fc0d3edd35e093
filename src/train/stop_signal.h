// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::train {

/// A scope in which SIGTERM, SIGINT and SIGUSR1 request a stop instead of ending the process. A
/// second signal ends the process at once. Only one object may exist at a time.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// Returns the signal received, or 0.
  int received() const;
};

}  // namespace diffattn::train
