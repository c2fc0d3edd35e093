// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/manifest.h"

// One checkpoint is a folder:
//   config.json, model.safetensors, ...   a model folder
//   rank-00000/                           the part of each process: optimiser, random state,
//   progress manifest.json                         sizes and checksums of all files above complete
//   checksum of manifest.json; written last
// A checkpoint of version 0.1.0 has the files of rank-00000 beside the model and no checksums.

namespace diffattn::train {

inline constexpr char kUnfinished[] = ".writing-";  // folders under this name are not complete

enum class CheckpointState {
  kIncomplete,        // has no marker: its writing or copying never finished
  kWithoutChecksums,  // of version 0.1.0
  kComplete,
};

CheckpointState checkpoint_state(const std::string& folder);

/// Returns the folder of one process's part.
std::string rank_folder(const std::string& checkpoint, int64_t rank);

/// Writes the manifest of a checkpoint whose other files are complete, and then the marker. It does
/// not read the files in `known`, whose checksums other processes have computed.
void finish_checkpoint(const std::string& folder, int64_t ranks,
                       const std::vector<io::Manifest::Entry>& known = {});
/// Returns the files of one process's part with their checksums, as JSON text of an io::Manifest.
std::string part_checksums(const std::string& checkpoint, int64_t rank);
/// Returns the files in a checkpoint that the texts of all ranks list.
std::vector<io::Manifest::Entry> known_files(const std::vector<std::string>& texts);

/// Reads all files of a complete checkpoint. Throws io::Error that names the first damaged file.
/// Returns the number of processes that wrote the checkpoint.
int64_t check_checkpoint(const std::string& folder);

/// Creates one folder, whose parent must exist. Throws io::Error.
void make_folder(const std::string& folder);

/// Removes what a killed process left in `folder`: unfinished folders `.writing-*` and temporary
/// files `.*.tmp` of io::AtomicFile. The caller holds the RunLock.
void remove_unfinished(const std::string& folder);

/// Syncs a folder, so that the names in it survive a power failure.
void sync_folder(const std::string& folder);

/// Renames `finished` to `target` and replaces an existing folder atomically. On file systems that
/// cannot exchange two names, the old folder is at `target`.old for a moment.
void replace_folder(const std::string& finished, const std::string& target);

}  // namespace diffattn::train
