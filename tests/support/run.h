// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/case.h"
#include "diffattn/kernels/backend.h"

namespace diffattn::testing {

/// What a test runs on: a backend in one of the element types it takes.
struct Target {
  const Backend* backend;
  Dtype dtype;
};
void PrintTo(const Target& target, std::ostream* out);

/// Every backend that was built, runs on this machine, and takes the type: cpu_backends() and
/// `extra_backends()`. A backend joins all tests by being in that list.
std::vector<Target> targets();
std::string target_name(const ::testing::TestParamInfo<Target>& info);

/// A device's test program puts its own backends here before main starts.
std::vector<Backend>& extra_backends();

struct ForwardResult {
  std::vector<double> out, lse1, lse2, o, o2;  // o and o2 empty unless saved
};

struct BackwardResult {
  std::vector<double> dq1, dq2, dk1, dk2, dv, dlambda, dnorm_weight, dmask;
};

/// One tensor of a result, for loops over all of them.
struct NamedGradient {
  const char* name;
  std::vector<double> BackwardResult::*values;
};
inline constexpr NamedGradient kGradients[] = {
    {"dq1", &BackwardResult::dq1},
    {"dq2", &BackwardResult::dq2},
    {"dk1", &BackwardResult::dk1},
    {"dk2", &BackwardResult::dk2},
    {"dv", &BackwardResult::dv},
    {"dlambda", &BackwardResult::dlambda},
    {"dnorm_weight", &BackwardResult::dnorm_weight},
    {"dmask", &BackwardResult::dmask},
};
inline constexpr unsigned kAllGradients = 0xff;  // bit i: kGradients[i] is wanted

/// These run on poisoned outputs and report damaged canaries as a test failure. What the backend
/// does not take, the reference does.
ForwardResult run_forward(const Backend& backend, const Case& c);
/// Forward for lse (and o, o2 where the case saves them), then backward.
BackwardResult run_backward(const Backend& backend, const Case& c, unsigned wanted = kAllGradients);

/// [rows_q, H, kStatCount]
std::vector<double> run_stats(const Backend& backend, const Case& c, double sparse_threshold);
/// dv and dnorm_weight stay empty. `dstats` is [rows_q, H, kStatCount].
BackwardResult run_stats_backward(const Backend& backend, const Case& c,
                                  const std::vector<double>& dstats);

/// Which part of the maps, in how many cells.
struct Tile {
  int64_t row_begin, row_end, col_begin, col_end, rows, cols;
};
/// [B, H, 3, rows, cols]
std::vector<double> run_map(const Backend& backend, const Case& c, const Tile& tile);

}  // namespace diffattn::testing
