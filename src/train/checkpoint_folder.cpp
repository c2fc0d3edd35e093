// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/hash.h"
#include "io/manifest.h"

namespace diffattn::train {
namespace {

namespace fs = std::filesystem;

constexpr char kManifestFile[] = "/manifest.json";
constexpr char kMarkerFile[] = "/complete";
constexpr char kOldStateFile[] = "/state.json";  // written last by version 0.1.0

[[noreturn]] void fail(const std::string& path, const std::string& action) {
  throw io::Error(path, action + ": " + strerror(errno));
}

}  // namespace

CheckpointState checkpoint_state(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(folder + kMarkerFile, ignored)) return CheckpointState::kComplete;
  const bool old = fs::exists(folder + kOldStateFile, ignored) &&
                   !fs::exists(folder + kManifestFile, ignored) &&
                   !fs::exists(rank_folder(folder, 0), ignored);
  return old ? CheckpointState::kWithoutChecksums : CheckpointState::kIncomplete;
}

std::string rank_folder(const std::string& checkpoint, int64_t rank) {
  return fmt::format("{}/rank-{:05}", checkpoint, rank);
}

std::string part_checksums(const std::string& checkpoint, int64_t rank) {
  const std::string part = rank_folder(checkpoint, rank);
  io::Manifest manifest = io::manifest_of(part, /*ranks=*/1);
  for (auto& entry : manifest.entries) {
    entry.path = fs::path(part).filename().string() + "/" + entry.path;
  }
  return manifest.to_json();
}

std::vector<io::Manifest::Entry> known_files(const std::vector<std::string>& texts) {
  std::vector<io::Manifest::Entry> known;
  for (const std::string& text : texts) {
    std::ranges::move(io::Manifest::parse(text, "checksums of a process").entries,
                      std::back_inserter(known));
  }
  return known;
}

void finish_checkpoint(const std::string& folder, int64_t ranks,
                       const std::vector<io::Manifest::Entry>& known) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) sync_folder(entry.path());
  }
  const std::string text = io::manifest_of(folder, ranks, known).to_json();
  io::write_text(folder + kManifestFile, text);
  io::write_text(folder + kMarkerFile, io::checksum_text(io::hash64(text)) + "\n");
  sync_folder(folder);
}

int64_t check_checkpoint(const std::string& folder) {
  const std::string path = folder + kManifestFile;
  std::string marker = io::read_text(folder + kMarkerFile, 64);
  if (marker.ends_with('\n')) marker.pop_back();
  const std::string text = io::read_text(path, io::kMaxManifestBytes);
  const std::string checksum = io::checksum_text(io::hash64(text));
  if (marker != checksum) {
    throw io::Error(path, "expected the checksum " + io::in_quotes(marker) + " of " + folder +
                              kMarkerFile + ", got '" + checksum + "'");
  }
  const io::Manifest manifest = io::Manifest::parse(text, path);
  io::check_files(folder, manifest);
  return manifest.ranks;
}

void make_folder(const std::string& folder) {
  std::error_code failed;
  fs::create_directory(folder, failed);
  if (failed) throw io::Error(folder, "could not create the folder: " + failed.message());
}

void remove_unfinished(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool unfinished =
        name.starts_with(kUnfinished) || (name.starts_with('.') && name.ends_with(".tmp"));
    if (unfinished) fs::remove_all(entry.path());
  }
}

void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(folder, "could not be opened");
  const int result = fsync(fd);
  const int error_number = errno;
  close(fd);
  errno = error_number;
  if (result != 0) fail(folder, "could not be synced");
}

void replace_folder(const std::string& finished, const std::string& target) {
  const fs::path parent = fs::path(target).parent_path();
  const bool there = fs::exists(target);
  // After an exchange, the old content is under the temporary name.
  const bool exchanged = there && renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, target.c_str(),
                                            RENAME_EXCHANGE) == 0;
  if (there && !exchanged) {
    // The file system cannot exchange names, so we move the old folder aside first.
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
      fail(target, "could not be replaced");
    }
    const std::string aside = target + ".old";
    fs::remove_all(aside);
    if (rename(target.c_str(), aside.c_str()) != 0) fail(target, "could not be moved aside");
  }
  if (!exchanged && rename(finished.c_str(), target.c_str()) != 0) {
    const int error_number = errno;
    if (there) rename((target + ".old").c_str(), target.c_str());
    errno = error_number;
    fail(target, "could not be put in place");
  }
  sync_folder(parent.empty() ? "." : parent.string());
  std::error_code ignored;
  fs::remove_all(there && !exchanged ? target + ".old" : finished, ignored);
}

}  // namespace diffattn::train
