// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::train {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";
constexpr char kTemporary[] = ".writing-";  // unfinished folders

[[noreturn]] void fail(const std::string& path, const std::string& action) {
  throw io::Error(path, action + ": " + strerror(errno));
}

/// Returns N of "step-N", or nothing for another name.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* begin = name.data() + strlen(kPrefix);
  const char* end = name.data() + name.size();
  int64_t step = -1;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw io::Error(folder, "could not create the folder: " + error.message());
}

}  // namespace

RunLock::RunLock(const std::string& folder) {
  make_folder(folder);
  const std::string path = folder + "/.lock";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(path, "could not be opened");
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = {};
    const ssize_t length = pread(fd_, holder, sizeof holder - 1, 0);
    close(fd_);
    throw io::Error(folder, "another run writes here (process " +
                                std::string(length > 0 ? holder : "unknown") +
                                "); choose another --out or stop that run first");
  }
  const std::string id = std::to_string(getpid());
  if (ftruncate(fd_, 0) != 0 || pwrite(fd_, id.data(), id.size(), 0) < 0) {
    fail(path, "could not be written");
  }
}

RunLock::~RunLock() { close(fd_); }

void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(folder, "could not be opened");
  const int result = fsync(fd);
  close(fd);
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

Checkpoints::Checkpoints(const std::string& run, int64_t keep)
    : root_(run + "/checkpoints"), keep_(std::max<int64_t>(2, keep)) {
  make_folder(root_);
  for (const auto& entry : fs::directory_iterator(root_)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kTemporary)) fs::remove_all(entry.path());
  }
}

std::string Checkpoints::folder_of(int64_t step) const {
  return root_ + "/" + kPrefix + std::to_string(step);
}

void Checkpoints::save(int64_t step, const std::function<void(const std::string&)>& write) {
  const std::string temporary = root_ + "/" + kTemporary + std::to_string(step);
  fs::remove_all(temporary);
  make_folder(temporary);
  try {
    write(temporary);
    sync_folder(temporary);
    replace_folder(temporary, folder_of(step));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  io::write_text(root_ + "/latest", kPrefix + std::to_string(step) + "\n");
  remove_old();
}

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> found;
  for (const auto& entry : fs::directory_iterator(root_)) {
    if (const auto step = step_of(entry.path().filename())) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::string> Checkpoints::latest() const {
  // Only finished folders have such a name, so the highest step is right even if a kill came before
  // the update of `latest`.
  const auto found = steps();
  if (found.empty()) return std::nullopt;
  return folder_of(found.back());
}

void Checkpoints::remove_old() {
  const auto found = steps();
  for (size_t i = 0; i + static_cast<size_t>(keep_) < found.size(); ++i) {
    std::error_code ignored;  // one old checkpoint too many does no harm
    fs::remove_all(folder_of(found[i]), ignored);
  }
}

}  // namespace diffattn::train
