// SPDX-License-Identifier: Apache-2.0
#pragma once

// A library that stands before libc and makes one chosen call fail. It counts the calls that write
// in one folder: write, pwrite, fsync, rename and close.

extern "C" {

enum FaultKind {
  kFaultNone = 0,
  kFaultNoSpace,     // fails with ENOSPC
  kFaultIo,          // fails with EIO
  kFaultShortWrite,  // writes half of the bytes; other calls do not fail
  kFaultKill,        // SIGKILL before the call
  kFaultNoFlags,     // every renameat2 with flags fails with EINVAL, as on some file systems
};

enum FaultCall { kCallWrite = 0, kCallSync, kCallRename, kCallClose };

/// Starts to count from 0 and makes call number `at` in `folder` fail once. What lies in the folder
/// counts if its name begins with one of `names`, which are separated by spaces; an empty text
/// stands for all names.
void fault_points_arm(const char* folder, const char* names, long at, FaultKind kind);
/// Returns the number of calls so far.
long fault_points_seen();
/// Returns the kind of call number `at`, for at < 65536.
FaultCall fault_points_call(long at);
}
