// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Memory limits of Linux control groups (cgroups), versions 1 and 2. Containers set them.
namespace diffattn::io {

/// Returns the files that hold the limits of a process: first that of its group, then those of the
/// parent groups that are mounted. `groups` is the text of /proc/PID/cgroup, `mounts` that of
/// /proc/PID/mountinfo. Skips malformed lines.
std::vector<std::string> memory_limit_files(std::string_view groups, std::string_view mounts);

/// Returns the smallest limit in these files, in bytes. Skips files that do not exist, say "max" or
/// hold no number; returns nullopt if none is left.
std::optional<uint64_t> least_memory_limit(const std::vector<std::string>& files);

/// Returns the smallest limit of this process. Without a limit, version 1 reports a number larger
/// than any memory.
std::optional<uint64_t> memory_limit();

}  // namespace diffattn::io
