// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/convert/convert.h"

namespace diffattn::convert {

/// A folder beside the target that takes its place when it is complete, and is gone otherwise.
class StagingFolder {
 public:
  /// Throws when the target exists and may not be replaced. `replace` is for model folders only:
  /// whatever else is there stays.
  StagingFolder(const std::string& target, bool replace);
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;
  ~StagingFolder();

  const std::string& path() const { return path_; }
  /// Throws when the disk has less room than that.
  void need_bytes(std::uint64_t bytes) const;
  /// Syncs the folder and puts it in the target's place, in one step also when one is there.
  void publish();

 private:
  std::string target_, path_;  // path_: what the destructor removes
  bool replace_;
};

/// Throws as StagingFolder's constructor does.
void check_target(const std::string& target, bool replace);

/// Copies the files of a model folder that belong to any layout into the other folder: not weights,
/// not config.json, not code, not what is below. Adds to the report what was carried and what not.
void carry_files(const std::string& source, const std::string& target, const Options& options,
                 Report& report);

}  // namespace diffattn::convert
