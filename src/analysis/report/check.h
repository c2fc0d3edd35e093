// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis {

/// Throws diffattn::Error with the message `diffattn: <what>: expected <expected>, got
/// <got>`.
[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got);

/// Throws unless `begin` and `end` have one entry per row and the ranges are within the columns.
void check_visible(const std::string& what, const std::vector<int64_t>& begin,
                   const std::vector<int64_t>& end, int64_t rows, int64_t columns);

void check(const Report& report);
void check(const HeadMaps& maps, const Report& report);

}  // namespace diffattn::analysis
