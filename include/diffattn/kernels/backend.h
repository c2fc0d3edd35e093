// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "diffattn/kernels/params.h"

namespace diffattn {

/// One way to compute the operations on host memory.
struct Backend {
  const char* name;         // what DIFFATTN_BACKEND and `diffattn info` call it
  const char* description;  // one line for people
  bool (*available)();      // does this machine have the instructions?
  bool (*takes)(const Problem& problem);
  void (*forward)(const ForwardParams& params);
  void (*backward)(const BackwardParams& params);
  void (*stats)(const StatsParams& params);
  void (*stats_backward)(const StatsBackwardParams& params);
  void (*map)(const MapParams& params);
};

/// Every CPU backend that was built, best first, the reference last.
std::span<const Backend> cpu_backends();

/// The first backend of that list that this machine has and that takes the problem, but none
/// before the one named `limit` (empty: no limit). Throws `Error` when there is no such name.
const Backend& choose_cpu_backend(const Problem& problem, std::string_view limit);

/// Throws `Error` naming the field when sizes, pointers or options do not make sense. With
/// `host_arrays`, the index arrays (lengths, starts, cu_seqlens) are host memory and are read too.
void validate(const Problem& problem, bool host_arrays);

/// The same, and that the tensors a call needs beside the problem are there.
void validate(const ForwardParams& params, bool host_arrays);
void validate(const BackwardParams& params, bool host_arrays);
void validate(const StatsParams& params, bool host_arrays);
void validate(const StatsBackwardParams& params, bool host_arrays);
void validate(const MapParams& params, bool host_arrays);

/// Throws `Error` unless [begin, end) lies within [0, size) and `cells` is between 1 and its extent
/// (0 for an empty range).
void check_range(const char* name, int64_t begin, int64_t end, int64_t cells, int64_t size);

}  // namespace diffattn
