// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "io/checked.h"

namespace diffattn::io {
namespace {

constexpr size_t kMaxWrite = size_t{1} << 30;  // bytes in one call; Linux writes 0x7ffff000 at most
// A file name has at most 255 bytes; the temporary name adds a process id and a counter to this.
constexpr size_t kMaxKeptBaseName = 200;
constexpr int kMaxNameAttempts = 1000;

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_name_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == ".." || name.find('\0') != std::string::npos) {
    throw Error(in_quotes(path),
                "expected the path of a file, got a path without a valid file name");
  }
  return name;
}

// The counter makes the name unique within the process, the process id between processes. O_EXCL
// catches the rest, such as a file that a killed process with the same id has left.
std::string next_temporary_name(const std::string& base_name) {
  static std::atomic<unsigned> counter{0};
  std::string name(1, '.');
  name.append(base_name, 0, kMaxKeptBaseName).append(".").append(std::to_string(::getpid()));
  return name.append("-").append(std::to_string(counter++)).append(".tmp");
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), base_name_(base_name_of(path)), directory_(Directory::open(parent_of(path))) {
  struct stat status = {};
  if (::fstatat(directory_.fd(), base_name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    throw Error(path_, "expected a regular file or a new name, got a directory or device");
  }
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_name_ = next_temporary_name(base_name_);
    fd_ = ::openat(directory_.fd(), temporary_name_.c_str(),
                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    const bool retry = errno == EINTR || errno == EEXIST;
    if (fd_ < 0 && (!retry || attempt >= kMaxNameAttempts)) {
      const int error_number = errno;
      temporary_name_.clear();
      fail("cannot create a temporary file in its folder", error_number);
    }
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::append(std::span<const std::byte> data) {
  write_at(position_, data);
  position_ += data.size();
}

void AtomicFile::append(std::string_view text) {
  append(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> data) {
  if (fd_ < 0) throw Error(path_, "expected no write after commit, got one");
  const auto end = checked_add(offset, data.size());
  if (!end || *end > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    throw Error(path_, offset, "expected a file within the system's size limit, got more");
  }
  while (!data.empty()) {
    const size_t piece = std::min(data.size(), kMaxWrite);
    const ssize_t put = ::pwrite(fd_, data.data(), piece, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write failed at byte " + std::to_string(offset), errno);
    // pwrite() may return 0 without an error; retrying would loop forever.
    if (put == 0) fail("write made no progress at byte " + std::to_string(offset), ENOSPC);
    data = data.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
}

void AtomicFile::commit() {
  if (fd_ < 0) throw Error(path_, "expected one commit, got a second");
  int synced = 0;
  do {
    synced = ::fsync(fd_);
  } while (synced != 0 && errno == EINTR);
  if (synced != 0) fail("sync failed", errno);
  // close() releases the descriptor even if it reports an error (NFS reports write errors here).
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail("close failed", errno);
  if (::renameat(directory_.fd(), temporary_name_.c_str(), directory_.fd(), base_name_.c_str())) {
    fail("rename failed", errno);
  }
  temporary_name_.clear();
  do {
    synced = ::fsync(directory_.fd());
  } while (synced != 0 && errno == EINTR);
  // Some file systems cannot sync a directory and return EINVAL; the rename has succeeded.
  if (synced != 0 && errno != EINVAL)
    fail("the file is in place, but directory sync failed", errno);
}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_name_.empty()) ::unlinkat(directory_.fd(), temporary_name_.c_str(), 0);
  temporary_name_.clear();
}

void AtomicFile::fail(const std::string& action, int error_number) const {
  throw Error(path_, action + ": " + std::generic_category().message(error_number));
}

void write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.commit();
}

}  // namespace diffattn::io
