// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/compare.h"

namespace diffattn::compare {

/// Writes report.html to `path`; see write_results().
void write_report(const std::string& path, const Comparison& comparison,
                  const std::vector<std::string>& introduction,
                  const std::vector<analysis::NextCommand>& next);

}  // namespace diffattn::compare
