// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "diffattn/kernels/params.h"

namespace diffattn {

/// One implementation of all operations on host memory.
struct Backend {
  const char* name;                       // as in DIFFATTN_BACKEND and `diffattn info`
  const char* description;                // one line for people
  bool (*available)();                    // true if this machine has the instructions
  bool (*takes)(const Problem& problem);  // true if it supports the element type
  void (*forward)(const ForwardParams& params);
  void (*backward)(const BackwardParams& params);
  void (*stats)(const StatsParams& params);
  void (*stats_backward)(const StatsBackwardParams& params);
  void (*map)(const MapParams& params);
};

/// Returns every CPU backend that was built: fastest first, the reference last.
std::span<const Backend> cpu_backends();

/// Returns the first backend of that list that is available and takes the problem. The search
/// starts at the backend named `limit` (empty: at the first). Throws `Error` if no backend has that
/// name.
const Backend& choose_cpu_backend(const Problem& problem, std::string_view limit);

/// Throws `Error` naming the field if sizes, pointers or options are invalid. With `host_arrays`,
/// the index arrays (lengths, starts, cu_seqlens) are host memory, and it checks their values too.
void validate(const Problem& problem, bool host_arrays);

/// Also checks the tensors and ranges that the operation needs besides the problem.
void validate(const ForwardParams& params, bool host_arrays);
void validate(const BackwardParams& params, bool host_arrays);
void validate(const StatsParams& params, bool host_arrays);
void validate(const StatsBackwardParams& params, bool host_arrays);
void validate(const MapParams& params, bool host_arrays);

/// Throws `Error` unless [begin, end) lies within [0, size) and `cells` is between 1 and
/// end - begin (0 for an empty range).
void check_range(const char* name, int64_t begin, int64_t end, int64_t cells, int64_t size);

}  // namespace diffattn
