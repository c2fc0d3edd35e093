// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/analysis/report.h"
#include "diffattn/data/tasks.h"

namespace diffattn::compare {

/// Returns the regions of a sequence of the needle task, from left to right: the needles that a
/// question asks for ("answer: key7 val3"), the other needles, and the noise between them.
std::vector<analysis::Region> haystack_regions(const data::TaskSequence& sequence,
                                               const data::NeedleOptions& options);

}  // namespace diffattn::compare
