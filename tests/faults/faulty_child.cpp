// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/faulty_child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace diffattn::testing {
namespace {

constexpr const char* kKinds[] = {"", "ENOSPC", "EIO", "short write", "kill"};
constexpr const char* kCalls[] = {"write", "fsync", "rename", "close"};

}  // namespace

End run_child(const FaultyFolder& where, const Fault& fault,
              const std::function<int(const Tell&)>& work) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const Tell tell = [&](int64_t number) {
      if (write(ends[1], &number, sizeof number) != sizeof number) _exit(kWrong);
    };
    fault_points_arm(where.folder.c_str(), where.names.c_str(), fault.at, fault.kind);
    const int code = work(tell);
    for (long i = 0; i < fault_points_seen(); ++i) tell(-1 - fault_points_call(i));
    _exit(code);
  }
  close(ends[1]);
  End end;
  for (int64_t told = 0; read(ends[0], &told, sizeof told) == sizeof told;) {
    if (told >= 0) end.told = told;
    if (told < 0) end.calls.push_back(static_cast<FaultCall>(-1 - told));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return end;
}

bool is_expected(int code, FaultCall call, FaultKind kind) {
  if (kind == kFaultKill) return code == -1;
  if (kind == kFaultShortWrite) return code == kEnded;
  const bool must_fail = call == kCallWrite || call == kCallSync;
  return code == kFailed || (code == kEnded && !must_fail);
}

std::vector<Fault> faults_of(const std::vector<FaultCall>& calls, size_t sample) {
  std::vector<Fault> all;
  for (size_t at = 0; at < calls.size(); ++at) {
    for (const FaultKind kind : {kFaultNoSpace, kFaultIo, kFaultShortWrite, kFaultKill}) {
      if (kind == kFaultShortWrite && calls[at] != kCallWrite) continue;
      all.push_back({static_cast<long>(at), kind});
    }
  }
  const char* const amount = getenv("DIFFATTN_TEST_FAULTS");
  if (amount != nullptr && std::string(amount) == "all") return all;
  std::vector<Fault> some;  // a stride without a common divisor with 4 meets every kind
  for (size_t i = 0; i < all.size(); i += (all.size() / sample) | 1) some.push_back(all[i]);
  return some;
}

std::string name_of(FaultCall call, FaultKind kind) {
  return std::string(kCalls[call]) + " " + kKinds[kind];
}

void use_quick_folders() {
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", /*replace=*/0);
}

}  // namespace diffattn::testing
