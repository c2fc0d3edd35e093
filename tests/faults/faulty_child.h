// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/faults/fault_points.h"

namespace diffattn::testing {

/// Call number `at` in a folder fails. at < 0: none fails.
struct Fault {
  long at = -1;
  FaultKind kind = kFaultNone;
};

/// Where calls count: in `folder`, under names that begin with one of `names` (all if empty).
struct FaultyFolder {
  std::string folder, names;
};

/// Exit codes of a child process: it did all its work, it threw an io::Error, or what is wrong.
inline constexpr int kEnded = 10, kFailed = 11, kWrong = 12;

/// The end of a child process.
struct End {
  int code = -1;                 // of its exit; -1 after a kill
  int64_t told = 0;              // the last number that it told its parent
  std::vector<FaultCall> calls;  // that fault_points counted; empty after a kill
};

using Tell = std::function<void(int64_t)>;  // of a number >= 0

/// Runs `work` in a child process, because a kill ends it, and returns what became of it.
End run_child(const FaultyFolder& where, const Fault& fault,
              const std::function<int(const Tell&)>& work);

/// True if a child process may end with `code` after such a fault. A write or a sync that failed
/// must be an error; a rename or a close may concern what is no longer needed.
bool is_expected(int code, FaultCall call, FaultKind kind);

/// Returns every call with every fault that it can have, or about `sample` of these unless
/// DIFFATTN_TEST_FAULTS is "all".
std::vector<Fault> faults_of(const std::vector<FaultCall>& calls, size_t sample);

/// Returns, for example, "write ENOSPC".
std::string name_of(FaultCall call, FaultKind kind);

/// Makes temporary folders on a file system with quick syncs, if there is one.
void use_quick_folders();

}  // namespace diffattn::testing
