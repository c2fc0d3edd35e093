// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "diffattn/io/error.h"
#include "io/checked.h"

namespace diffattn::io {
namespace {

// Linux reads at most 0x7ffff000 bytes in one call. Smaller reads let a signal stop the process
// sooner.
constexpr size_t kMaxTransfer = size_t{1} << 30;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

int open_retrying(int directory, const char* path, int flags) {
  int fd = -1;
  do {
    fd = ::openat(directory, path, flags);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

void check_bare_name(const std::string& name, const std::string& shown) {
  const bool bare = !name.empty() && name != "." && name != ".." &&
                    name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!bare) throw Error(shown, "expected a bare file name, got " + in_quotes(name));
}

// O_NONBLOCK makes the open of a FIFO return at once; it has no effect on regular files.
int open_flags(Symlinks symlinks) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  return symlinks == Symlinks::kRefuse ? flags | O_NOFOLLOW : flags;
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "an unknown kind of file";
}

[[noreturn]] void fail_open(const std::string& name, int error_number, Symlinks symlinks) {
  if (error_number == ELOOP && symlinks == Symlinks::kRefuse) {
    throw Error(name, "expected a regular file, got a symbolic link");
  }
  throw Error(name, "expected a readable file, got: " + reason(error_number));
}

}  // namespace

Directory Directory::open(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(in_quotes(path), "expected a path, got one with a NUL byte");
  }
  const int fd = open_retrying(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw Error(path, "expected a directory, got: " + reason(errno));
  return Directory(fd, path);
}

Directory::Directory(Directory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

Directory& Directory::operator=(Directory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

Directory::~Directory() {
  if (fd_ >= 0) ::close(fd_);
}

std::string Directory::join(std::string_view name) const {
  if (path_.empty() || path_ == ".") return std::string(name);
  std::string joined = path_;
  if (joined.back() != '/') joined += '/';
  return joined.append(name);
}

bool Directory::contains(const std::string& name) const {
  struct stat status = {};
  return ::fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

File File::open(const std::string& path, Symlinks symlinks) {
  if (path.find('\0') != std::string::npos) {
    throw Error(in_quotes(path), "expected a path, got one with a NUL byte");
  }
  const int fd = open_retrying(AT_FDCWD, path.c_str(), open_flags(symlinks));
  if (fd < 0) fail_open(path, errno, symlinks);
  return adopt(fd, path);
}

File File::open_in(const Directory& directory, const std::string& name, Symlinks symlinks) {
  check_bare_name(name, directory.path());
  const int fd = open_retrying(directory.fd(), name.c_str(), open_flags(symlinks));
  if (fd < 0) fail_open(directory.join(name), errno, symlinks);
  return adopt(fd, directory.join(name));
}

File File::adopt(int fd, std::string name) {
  File file(fd, 0, std::move(name));
  struct stat status = {};
  if (::fstat(fd, &status) != 0) throw Error(file.name_, "fstat failed: " + reason(errno));
  if (!S_ISREG(status.st_mode)) {
    throw Error(file.name_, std::string("expected a regular file, got ") + kind_of(status.st_mode));
  }
  file.size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), name_(std::move(other.name_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(name_, other.name_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::read(uint64_t offset, std::span<std::byte> out) const {
  const auto end = checked_add(offset, out.size());
  if (!end || *end > size_) {
    throw Error(name_, offset,
                "expected " + std::to_string(out.size()) + " bytes, got a file of " +
                    std::to_string(size_) + " bytes");
  }
  while (!out.empty()) {
    const size_t piece = std::min(out.size(), kMaxTransfer);
    const ssize_t got = ::pread(fd_, out.data(), piece, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw Error(name_, offset, "read failed: " + reason(errno));
    }
    if (got == 0) {
      throw Error(name_, offset,
                  "expected " + std::to_string(out.size()) +
                      " more bytes, got the end of a file that has shrunk since it was opened");
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

std::string read_text(const File& file, uint64_t max_bytes) {
  if (file.size() > max_bytes) {
    throw Error(file.name(), "expected at most " + std::to_string(max_bytes) + " bytes, got " +
                                 std::to_string(file.size()));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

std::string read_text(const std::string& path, uint64_t max_bytes) {
  return read_text(File::open(path), max_bytes);
}

}  // namespace diffattn::io
