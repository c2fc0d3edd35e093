// SPDX-License-Identifier: Apache-2.0
#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "diffattn/io/error.h"

namespace diffattn::train {
namespace {

constexpr char kLockFile[] = "/.lock";

}  // namespace

RunLock::RunLock(const std::string& folder) : folder_(folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw io::Error(folder, "could not create the folder: " + failed.message());
  const std::string path = folder + kLockFile;
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw io::Error(path, std::string("could not be opened: ") + strerror(errno));
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
    const int error_number = errno;
    close(fd_);
    throw io::Error(path, std::string("could not be written: ") + strerror(error_number));
  }
}

RunLock::~RunLock() { close(fd_); }

void RunLock::check() const {
  struct stat held = {}, named = {};
  const std::string path = folder_ + kLockFile;
  const bool same = fstat(fd_, &held) == 0 && stat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  if (!same) {
    throw io::Error(folder_, "the run folder was removed or replaced while the run was using it");
  }
}

}  // namespace diffattn::train
