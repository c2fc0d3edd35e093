// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace diffattn::io {

/// Follows or refuses symbolic links. Files that are opened through a link must be regular, too.
enum class Symlinks { kFollow, kRefuse };

/// An open directory. Files are opened relative to it, so renaming a parent folder or replacing it
/// with a symbolic link cannot redirect them.
class Directory {
 public:
  /// Throws Error if path is not a directory or cannot be opened.
  static Directory open(const std::string& path);
  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&& other) noexcept;
  ~Directory();

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }
  /// Joins path() and a bare name, for messages.
  std::string join(std::string_view name) const;
  /// True if an entry of that name exists: a file, a folder or anything else.
  bool contains(const std::string& name) const;

 private:
  Directory(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// A regular file open for reading. It uses pread instead of a memory mapping: if the file shrinks,
/// pread reports a short read, whereas a mapping kills the process with SIGBUS.
///
/// Several threads may call read() at once.
class File {
 public:
  /// Throws Error for directories, FIFOs, sockets and devices, and never blocks on them.
  static File open(const std::string& path, Symlinks symlinks = Symlinks::kFollow);
  /// Opens a bare name (no '/') inside an open directory.
  static File open_in(const Directory& directory, const std::string& name, Symlinks symlinks);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Size when the file was opened.
  uint64_t size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  int fd() const noexcept { return fd_; }
  /// Fills out with the bytes from offset on. Throws Error if the file has fewer.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  File(int fd, uint64_t size, std::string name) : fd_(fd), size_(size), name_(std::move(name)) {}
  static File adopt(int fd, std::string name);
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string name_;
};

/// Returns the whole file as text. Throws Error if it has more than max_bytes bytes.
std::string read_text(const File& file, uint64_t max_bytes);
std::string read_text(const std::string& path, uint64_t max_bytes);

/// A file that is written completely or not at all.
///
/// Data goes to a hidden temporary file in the same folder. commit() syncs it, renames it over the
/// target and syncs the directory. Until the rename, the old file stays unchanged. The destructor
/// removes the temporary file if commit() was not called. commit() replaces a symbolic link at the
/// target instead of following it; the constructor throws Error for directories and devices. The
/// file gets mode 0666 less the umask. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends data after the previous append.
  void append(std::span<const std::byte> data);
  void append(std::string_view text);
  /// Writes at the given offset; the append position stays the same.
  void write_at(uint64_t offset, std::span<const std::byte> data);
  /// Makes the file visible. No writes are allowed afterwards. If only the last step fails, the
  /// sync of the directory, the Error says that the file is in place but may not survive a power
  /// cut.
  void commit();

  const std::string& path() const noexcept { return path_; }

 private:
  [[noreturn]] void fail(const std::string& action, int error_number) const;
  void discard() noexcept;

  std::string path_;
  std::string base_name_;
  std::string temporary_name_;
  Directory directory_;
  int fd_ = -1;
  uint64_t position_ = 0;
};

/// Writes text to path through an AtomicFile.
void write_text(const std::string& path, std::string_view text);

}  // namespace diffattn::io
