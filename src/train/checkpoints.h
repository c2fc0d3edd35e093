// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace diffattn::train {

/// A lock on a run folder. A second process gets an io::Error that names the first one. The kernel
/// releases the lock when the process ends, also after a kill.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  int fd_ = -1;
};

/// The folders `checkpoints/step-N` of a run and the file `checkpoints/latest`, which names the
/// newest. A folder appears under its name only when it is complete.
class Checkpoints {
 public:
  /// Creates `<run>/checkpoints` and removes unfinished folders of a killed run. The caller holds
  /// the RunLock. The newest `keep` checkpoints are kept, at least 2.
  Checkpoints(const std::string& run, int64_t keep);

  /// Calls `write` to fill a new folder, gives it its name, updates `latest` and removes old
  /// checkpoints. If `write` throws or the process is killed, the other checkpoints stay intact.
  void save(int64_t step, const std::function<void(const std::string& folder)>& write);

  /// Returns the newest checkpoint, or nothing.
  std::optional<std::string> latest() const;

  /// Returns the steps of all checkpoints in ascending order.
  std::vector<int64_t> steps() const;

 private:
  std::string folder_of(int64_t step) const;
  void remove_old();

  std::string root_;
  int64_t keep_;
};

/// Syncs a folder, so that the names in it survive a power failure.
void sync_folder(const std::string& folder);

/// Renames `finished` to `target` and replaces an existing folder atomically. On file systems that
/// cannot exchange two names, the old folder is at `target`.old for a moment.
void replace_folder(const std::string& finished, const std::string& target);

}  // namespace diffattn::train
