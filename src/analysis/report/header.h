// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis {

/// Returns the first block of a report: everything but the maps (docs/report_format.md).
nlohmann::json header_of(const Report& report);

}  // namespace diffattn::analysis
