// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace diffattn::io {

enum class Symlinks { kFollow, kRefuse };

/// An open directory; files inside it are opened relative to it, so that a rename or a swapped
/// symbolic link further up cannot redirect them.
class Directory {
 public:
  /// Throws Error when path is not a directory that can be opened.
  static Directory open(const std::string& path);
  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&& other) noexcept;
  ~Directory();

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }
  /// path() joined with a bare name, for messages.
  std::string join(std::string_view name) const;
  /// True when an entry of that name exists, of whatever kind.
  bool contains(const std::string& name) const;

 private:
  Directory(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// A regular file open for reading. Reads go through pread and not a mapping: a mapped file that
/// shrinks kills the process with SIGBUS, a short read is an Error.
///
/// read() may be called from several threads at once.
class File {
 public:
  /// Refuses directories, FIFOs, sockets and devices without blocking on them.
  static File open(const std::string& path, Symlinks symlinks = Symlinks::kFollow);
  /// Opens a bare name (no '/') inside an open directory.
  static File open_in(const Directory& directory, const std::string& name, Symlinks symlinks);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Size when the file was opened.
  std::uint64_t size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  int fd() const noexcept { return fd_; }
  /// Fills out with the bytes from offset on; throws Error unless all of them are there.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(int fd, std::uint64_t size, std::string name)
      : fd_(fd), size_(size), name_(std::move(name)) {}
  static File adopt(int fd, std::string name);
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::string name_;
};

/// The whole file as text; throws Error when it has more than max_bytes bytes.
std::string read_text(const File& file, std::uint64_t max_bytes);
std::string read_text(const std::string& path, std::uint64_t max_bytes);

/// A file that appears under its name complete or not at all.
///
/// Data goes to a hidden sibling; commit() syncs it, renames it over the target and syncs the
/// directory. Until commit() returns from the rename the old file stays as it was, also for those
/// who have it open. Destroyed before that, the sibling is removed. A symbolic link at the target
/// is replaced, not followed; any other non-file there is refused. The file gets mode 0666 less
/// the umask. Not for use by several threads at once.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends after the last append.
  void append(std::span<const std::byte> data);
  void append(std::string_view text);
  /// Writes at an offset of its own, in any order, without moving the append position.
  void write_at(std::uint64_t offset, std::span<const std::byte> data);
  /// Makes the file visible. Nothing may be written afterwards. An Error from the last step, the
  /// directory's sync, says that the new file is in place but may not survive a power cut.
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
  std::uint64_t position_ = 0;
};

/// Writes text to path through an AtomicFile.
void write_text(const std::string& path, std::string_view text);

}  // namespace diffattn::io
