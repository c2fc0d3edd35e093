// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace diffattn::train {

/// A lock on a run folder. A second process gets an io::Error that names the first one. The kernel
/// releases the lock when the process ends, also after a kill.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

  /// Throws io::Error if the folder was removed or replaced since the lock was taken.
  void check() const;

 private:
  std::string folder_;
  int fd_ = -1;
};

}  // namespace diffattn::train
