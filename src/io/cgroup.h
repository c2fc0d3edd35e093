// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Memory limits of Linux control groups (containers are made of them), versions 1 and 2.
namespace diffattn::io {

/// The files that hold the limits of a process: those of its own group, then of the groups around
/// it, as far as they are mounted. `groups` is the text of /proc/PID/cgroup, `mounts` that of
/// /proc/PID/mountinfo; lines that are none are passed over.
std::vector<std::string> memory_limit_files(std::string_view groups, std::string_view mounts);

/// The smallest limit in these files, in bytes; none where each says "max", is not there or holds
/// no number.
std::optional<std::uint64_t> least_memory_limit(const std::vector<std::string>& files);

/// The smallest limit of this process; version 1 writes a number beyond any memory for "none".
std::optional<std::uint64_t> memory_limit();

}  // namespace diffattn::io
