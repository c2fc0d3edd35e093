// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::train {

/// While it lives, SIGTERM, SIGINT and SIGUSR1 ask for a stop instead of ending the process; a
/// second signal ends it at once. Only one may live at a time.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// The signal that came, 0 when none has.
  int received() const;
};

}  // namespace diffattn::train
