// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/convert/convert.h"

namespace diffattn::convert {

/// A temporary folder next to the target. publish() renames it to the target; otherwise the
/// destructor removes it.
class StagingFolder {
 public:
  /// Throws io::Error if the target exists, unless `replace` is true and it is a model folder.
  StagingFolder(const std::string& target, bool replace);
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;
  ~StagingFolder();

  const std::string& path() const { return path_; }
  /// Throws io::Error if the disk has less free space.
  void need_bytes(uint64_t bytes) const;
  /// Syncs the folder and renames it to the target. Replaces an existing target in one step where
  /// the file system can.
  void publish();

 private:
  std::string target_, path_;  // the destructor removes path_
  bool replace_;
};

/// Throws like the constructor of StagingFolder.
void check_target(const std::string& target, bool replace);

/// Copies the files of a model folder that do not depend on the layout: no weights, no config.json,
/// no code, no subfolders. Adds the copied and the skipped files to the report.
void carry_files(const std::string& source, const std::string& target, const Options& options,
                 Report& report);

}  // namespace diffattn::convert
