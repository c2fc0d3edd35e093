// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "io/manifest.h"

namespace diffattn::train {

/// Returns the folder in which the processes of a run write a checkpoint.
std::string unfinished_checkpoint(const std::string& run, int64_t step);

/// The folders `checkpoints/step-N` of a run and the file `checkpoints/latest`, which names the
/// newest. A folder appears under its name only when it is complete.
class Checkpoints {
 public:
  /// Creates `<run>/checkpoints` and removes unfinished folders of a killed run. The caller holds
  /// the RunLock. The newest `keep` checkpoints are kept, at least 2.
  Checkpoints(const std::string& run, int64_t keep);

  /// Calls `write` to fill a new folder with the parts of `ranks` processes, adds manifest and
  /// marker (`write` may add files to `known` whose checksums other processes have computed), gives
  /// it its name, updates `latest` and removes old checkpoints. It also removes checkpoints of
  /// later steps: they belong to a course of the run that the user left by resuming from an earlier
  /// step. If `write` throws or the process is killed, the checkpoints of earlier steps stay
  /// intact.
  void save(int64_t step, int64_t ranks,
            const std::function<void(const std::string& folder)>& write,
            const std::vector<io::Manifest::Entry>& known = {});

  /// The checkpoint to resume from.
  struct Choice {
    std::optional<int64_t> step;        // none if there is no complete checkpoint
    std::vector<std::string> unusable;  // names of newer folders that never became complete
  };
  /// Chooses the newest complete checkpoint. Throws io::Error if `latest` names one that is
  /// missing.
  Choice choose() const;
  /// Chooses the checkpoint of one step. Throws io::Error if it is missing or not complete.
  Choice choose(int64_t step) const;

  /// True if there is a complete checkpoint.
  bool any() const;

  /// Returns the newest checkpoint before `step` whose checksums are right.
  std::optional<int64_t> intact_before(int64_t step) const;

  /// Returns the steps of all folders `step-N` in ascending order, complete or not.
  std::vector<int64_t> steps() const;
  std::string folder_of(int64_t step) const;

 private:
  std::vector<int64_t> complete_steps() const;
  std::optional<int64_t> named_latest() const;
  void name_latest(int64_t step);
  std::string set_aside(int64_t step, std::error_code& failed);
  void remove_later_than(int64_t step);
  void remove_old();

  std::string run_, root_;
  int64_t keep_;
};

/// Returns "step-N".
std::string checkpoint_name(int64_t step);
/// Returns N of "step-N", or nothing for another name.
std::optional<int64_t> checkpoint_step(const std::string& name);

}  // namespace diffattn::train
