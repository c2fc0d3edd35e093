// SPDX-License-Identifier: Apache-2.0
#include "convert/staging.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/safetensors/sharded.h"

namespace diffattn::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCopyBytes = size_t{1} << 20;

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string reason(int error_number) { return std::generic_category().message(error_number); }

void sync_folder(const std::string& path) {
  const io::Directory folder = io::Directory::open(path);
  if (::fsync(folder.fd()) != 0 && errno != EINVAL) {
    throw io::Error(path, "sync failed: " + reason(errno));
  }
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// Returns the reason not to copy a file: empty if we copy it, "-" if the conversion writes its
/// own.
std::string why_left(const fs::directory_entry& entry, io::Symlinks symlinks) {
  static constexpr std::array<std::string_view, 8> kWeights = {
      ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"};
  const std::string name = entry.path().filename().string();
  if (name == "config.json" || name == io::kModelIndexFile) return "-";
  if (name.starts_with(".")) return "hidden";
  const std::string extension = entry.path().extension().string();
  if (std::ranges::find(kWeights, extension) != kWeights.end()) {
    const bool converted = extension == ".safetensors" && name.starts_with("model");
    return converted ? "-" : "weights in the old layout";
  }
  if (extension == ".py") return "code for the old layout";
  std::error_code unreadable;  // a link to nothing or to itself
  if (entry.is_symlink(unreadable) && symlinks == io::Symlinks::kRefuse) return "a symbolic link";
  return entry.is_regular_file(unreadable) ? "" : "not a file";
}

void copy_file(const std::string& source, const std::string& target, io::Symlinks symlinks) {
  const io::File file = io::File::open(source, symlinks);
  io::AtomicFile copy(target);
  std::vector<std::byte> buffer;
  for (uint64_t at = 0; at < file.size(); at += buffer.size()) {
    buffer.resize(static_cast<size_t>(std::min<uint64_t>(kCopyBytes, file.size() - at)));
    file.read(at, buffer);
    copy.append(buffer);
  }
  copy.commit();
}

}  // namespace

void check_target(const std::string& target, bool replace) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target, error);
  if (!fs::exists(status)) return;
  if (!replace)
    throw io::Error(target, "expected a new folder, got one that exists; --force replaces it");
  if (!fs::is_directory(status) || !fs::exists(target + "/config.json", error)) {
    throw io::Error(target,
                    "expected a model folder to replace, got a file or folder without config.json");
  }
}

StagingFolder::StagingFolder(const std::string& target, bool replace)
    : target_(without_trailing_slash(target)), replace_(replace) {
  check_target(target_, replace);
  const fs::path whole(target_);
  std::string pattern =
      (fs::path(parent_of(target_)) / ("." + whole.filename().string() + ".XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw io::Error(target_, "cannot create a temporary folder next to it: " + reason(errno));
  }
  path_ = pattern;
  fs::permissions(path_, fs::perms(0755));
}

StagingFolder::~StagingFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void StagingFolder::need_bytes(uint64_t bytes) const {
  struct statvfs disk = {};
  if (::statvfs(path_.c_str(), &disk) != 0) return;
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free < bytes) {
    throw io::Error(target_, "expected free space for " + std::to_string(bytes) + " bytes, got " +
                                 std::to_string(free) + " bytes free");
  }
}

void StagingFolder::publish() {
  sync_folder(path_);
  const auto renamed = [](const std::string& from, const std::string& to, unsigned flags) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return true;
    // Some file systems do not support the flag; a plain rename is the next best.
    return errno == EINVAL && flags == RENAME_NOREPLACE && ::rename(from.c_str(), to.c_str()) == 0;
  };
  const auto fail = [&] {
    throw io::Error(target_, "cannot rename the new folder to this name: " + reason(errno));
  };
  if (renamed(path_, target_, RENAME_NOREPLACE)) {
    path_.clear();
  } else if (!replace_ || (errno != EEXIST && errno != ENOTEMPTY)) {
    fail();
  } else if (!renamed(path_, target_, RENAME_EXCHANGE)) {
    const std::string aside = path_ + ".old";
    if (errno != EINVAL || ::rename(target_.c_str(), aside.c_str()) != 0) fail();
    if (::rename(path_.c_str(), target_.c_str()) != 0) {
      const int error_number = errno;
      ::rename(aside.c_str(), target_.c_str());
      errno = error_number;
      fail();
    }
    path_ = aside;
  }
  sync_folder(parent_of(target_));
}

void carry_files(const std::string& source, const std::string& target, const Options& options,
                 Report& report) {
  std::vector<fs::directory_entry> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) entries.push_back(entry);
  std::ranges::sort(entries);
  std::string linked;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const std::string why = why_left(entry, options.symlinks);
    if (why == "-") continue;
    if (!why.empty()) {
      report.left.push_back({name, why});
      continue;
    }
    if (!options.dry_run) copy_file(entry.path().string(), target + "/" + name, options.symlinks);
    report.files.push_back(name);
    std::error_code ignored;
    if (entry.is_symlink(ignored)) linked += (linked.empty() ? "" : ", ") + io::in_quotes(name);
  }
  if (!linked.empty()) {
    report.notes.push_back("symbolic links: the result has copies of the files they lead to: " +
                           linked);
  }
}

}  // namespace diffattn::convert
