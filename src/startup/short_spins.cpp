// SPDX-License-Identifier: Apache-2.0
//
// Compiled into an executable, this file makes its OpenMP threads spin briefly before they sleep:
// GOMP_SPINCOUNT=1000, about 25 us. GNU's default is about 7 ms at the end of every parallel
// region. That is longer than a time slice, so beside another busy program each thread spends its
// share of the CPU on waiting for one that cannot run. Shorter spins than this one are slower on a
// quiet machine (docs/speed.md).
//
// libgomp reads the variable in its constructor, before main(), and has no function to set it. The
// functions in .preinit_array run before the constructors of all shared libraries, but libc has no
// environment yet that they could change. So ours starts the program again, with the variable. No
// library is initialised at that time, which makes the restart cost a few milliseconds.

#include <unistd.h>

#include <array>
#include <climits>
#include <cstddef>
#include <cstring>

namespace {

char spins[] = "GOMP_SPINCOUNT=1000";
constexpr size_t kMostVariables = 4096;

bool is_variable(const char* entry, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

/// Starts the program again with GOMP_SPINCOUNT. Does nothing if the environment says how threads
/// wait, and returns if the program cannot be started again.
void restart_with_short_spins(int /*argc*/, char** argv, char** environment) {
  static std::array<char*, kMostVariables + 2> entries;
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (count == kMostVariables || is_variable(environment[count], "GOMP_SPINCOUNT") ||
        is_variable(environment[count], "OMP_WAIT_POLICY")) {
      return;
    }
    entries[count] = environment[count];
  }
  entries[count] = spins;
  std::array<char, PATH_MAX> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) <= 0) return;
  execve(path.data(), argv, entries.data());
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kRestart)(int, char**, char**) = restart_with_short_spins;

}  // namespace
