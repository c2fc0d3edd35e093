// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "diffattn/kernels/backend.h"
#include "tests/support/case.h"

namespace diffattn::testing {

/// The target of a test: a backend and one of the element types it takes.
struct Target {
  const Backend* backend;
  Dtype dtype;
};
void PrintTo(const Target& target, std::ostream* out);

/// Returns every backend of cpu_backends() and extra_backends() that runs on this machine, in each
/// element type it takes. All kernel tests run on each of them.
std::vector<Target> targets();
std::string target_name(const ::testing::TestParamInfo<Target>& info);

/// The test program of a device adds its backends here before main starts.
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

/// These functions fill the outputs with NaN first and report overwritten canaries as a test
/// failure. The reference runs problems that the backend does not take.
ForwardResult run_forward(const Backend& backend, const Case& c);
/// Runs the forward for lse (and for o and o2 if the case saves them), then the backward.
BackwardResult run_backward(const Backend& backend, const Case& c, unsigned wanted = kAllGradients);

/// [rows_q, H, kStatCount]
std::vector<double> run_stats(const Backend& backend, const Case& c, double sparse_threshold);
/// dv and dnorm_weight stay empty. `dstats` is [rows_q, H, kStatCount].
BackwardResult run_stats_backward(const Backend& backend, const Case& c,
                                  const std::vector<double>& dstats);

/// A range of rows and columns of the maps, and the grid of cells to downsample it to.
struct Tile {
  int64_t row_begin, row_end, col_begin, col_end, rows, cols;
};
/// [B, H, 3, rows, cols]
std::vector<double> run_map(const Backend& backend, const Case& c, const Tile& tile);

}  // namespace diffattn::testing
