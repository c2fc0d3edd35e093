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

char run_folder[PATH_MAX];
long fault_at = -1, seen = 0;
FaultKind fault_kind = kFaultNone;
std::array<FaultCall, kMaxRecorded> calls;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// True for a path of the run's checkpoints or model folder, and for the run folder itself, which
/// is synced after the model was renamed. metrics.jsonl and the other files of a run do not count.
bool counts(const char* path) {
  const size_t length = strlen(run_folder);
  if (length == 0 || strncmp(path, run_folder, length) != 0) return false;
  const char* rest = path + length;
  return *rest == '\0' || strncmp(rest, "/checkpoints", 12) == 0 ||
         strncmp(rest, "/model", 6) == 0 || strncmp(rest, "/.writing-model", 15) == 0;
}

/// Writes the path of an open file to `path`, or an empty string.
void path_of(int fd, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = '\0';
}

bool counts(int fd) {
  if (run_folder[0] == '\0') return false;
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

void fault_points_arm(const char* folder, long at, FaultKind kind) {
  snprintf(run_folder, sizeof run_folder, "%s", folder);
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
  if (counts_at(to_directory, to) && failed(next_fault(kCallRename))) return -1;
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
