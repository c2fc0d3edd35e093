// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/fault_points.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

constexpr long kMaxRecorded = 65536;

char watched_folder[PATH_MAX], watched_names[256];
long fault_at = -1, seen = 0;
FaultKind fault_kind = kFaultNone;
std::array<FaultCall, kMaxRecorded> calls;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// True for the watched folder itself, which is synced after a rename, and for a path in it under
/// one of the watched names.
bool counts(const char* path) {
  const size_t length = strlen(watched_folder);
  if (length == 0 || strncmp(path, watched_folder, length) != 0) return false;
  if (path[length] == '\0') return true;
  if (path[length] != '/') return false;
  const char* const rest = path + length + 1;
  const char* name = watched_names;
  do {
    const size_t size = strcspn(name, " ");
    if (strncmp(rest, name, size) == 0) return true;
    name += size + (name[size] == ' ');
  } while (*name != '\0');
  return false;
}

/// Writes the path of an open file to `path`, or an empty string.
void path_of(int fd, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = '\0';
}

bool counts(int fd) {
  if (watched_folder[0] == '\0') return false;
  char path[PATH_MAX];
  path_of(fd, path, sizeof path);
  return counts(path);
}

bool counts_at(int directory, const char* name) {
  if (name[0] == '/') return counts(name);
  return directory != AT_FDCWD && counts(directory);
}

/// Counts a call. Returns the fault that it must have.
FaultKind next_fault(FaultCall call) {
  if (seen < kMaxRecorded) calls[static_cast<size_t>(seen)] = call;
  if (seen++ != fault_at) return kFaultNone;
  if (fault_kind == kFaultKill) kill(getpid(), SIGKILL);
  return fault_kind;
}

/// Sets errno. Returns true if the call must fail.
bool failed(FaultKind kind) {
  if (kind != kFaultNoSpace && kind != kFaultIo) return false;
  errno = kind == kFaultNoSpace ? ENOSPC : EIO;
  return true;
}

}  // namespace

extern "C" {

void fault_points_arm(const char* folder, const char* names, long at, FaultKind kind) {
  snprintf(watched_folder, sizeof watched_folder, "%s", folder);
  snprintf(watched_names, sizeof watched_names, "%s", names);
  fault_at = at;
  fault_kind = kind;
  seen = 0;
}

long fault_points_seen() { return seen; }
FaultCall fault_points_call(long at) { return calls[static_cast<size_t>(at)]; }

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  const FaultKind fault = counts(fd) ? next_fault(kCallWrite) : kFaultNone;
  if (failed(fault)) return -1;
  return next(fd, data, fault == kFaultShortWrite ? (size + 1) / 2 : size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const next = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const FaultKind fault = counts(fd) ? next_fault(kCallWrite) : kFaultNone;
  if (failed(fault)) return -1;
  return next(fd, data, fault == kFaultShortWrite ? (size + 1) / 2 : size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return pwrite(fd, data, size, offset);
}

int fsync(int fd) {
  static auto* const next = real<int(int)>("fsync");
  if (counts(fd) && failed(next_fault(kCallSync))) return -1;
  return next(fd);
}

int rename(const char* from, const char* to) {
  static auto* const next = real<int(const char*, const char*)>("rename");
  if (counts_at(AT_FDCWD, to) && failed(next_fault(kCallRename))) return -1;
  return next(from, to);
}

int renameat(int from_directory, const char* from, int to_directory, const char* to) {
  static auto* const next = real<int(int, const char*, int, const char*)>("renameat");
  if (counts_at(to_directory, to) && failed(next_fault(kCallRename))) return -1;
  return next(from_directory, from, to_directory, to);
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) {
  static auto* const next = real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  const bool counted = counts_at(to_directory, to);
  if (counted && flags != 0 && fault_kind == kFaultNoFlags) {
    errno = EINVAL;
    return -1;
  }
  if (counted && failed(next_fault(kCallRename))) return -1;
  return next(from_directory, from, to_directory, to, flags);
}

// A close() that reports an error has closed the file all the same. Folders and files that are only
// read have nothing to lose.
int close(int fd) {
  static auto* const next = real<int(int)>("close");
  const bool written = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && counts(fd);
  const FaultKind fault = written ? next_fault(kCallClose) : kFaultNone;
  const int result = next(fd);
  return failed(fault) ? -1 : result;
}

}  // extern "C"
