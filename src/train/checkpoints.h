// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace diffattn::train {

/// Keeps a run folder to one process: a second one gets an io::Error that says who holds it. The
/// kernel lets go of the lock when the process ends, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  int fd_ = -1;
};

/// The folders `checkpoints/step-N` of a run, each there complete or not at all, and the file
/// `checkpoints/latest` that names the newest, written last.
class Checkpoints {
 public:
  /// Makes `<run>/checkpoints` and removes what a killed run left half written. The caller holds
  /// the RunLock. `keep` >= 2 newest are kept.
  Checkpoints(const std::string& run, int64_t keep);

  /// `write` fills a new folder; it then gets its name, `latest` moves, old ones go. An exception
  /// from `write`, or a kill at any moment, leaves everything as it was.
  void save(int64_t step, const std::function<void(const std::string& folder)>& write);

  /// The newest complete checkpoint, or nothing.
  std::optional<std::string> latest() const;

  /// Steps of all complete checkpoints, ascending.
  std::vector<int64_t> steps() const;

 private:
  std::string folder_of(int64_t step) const;
  void remove_old();

  std::string root_;
  int64_t keep_;
};

/// Syncs a folder, so that the names in it survive a power cut.
void sync_folder(const std::string& folder);

/// Gives a finished folder its name, replacing what is there in one step; where the file system
/// cannot do that, what was there lies at `target`.old for a moment.
void replace_folder(const std::string& finished, const std::string& target);

}  // namespace diffattn::train
