// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compare/compare.h"

namespace diffattn::compare {

/// Adds the tables of a comparison to `report`, and the curves over needles and depths. The table
/// of every number is the last. Columns mark their best value only if it differs from the others by
/// more than the spread of several seeds.
void add_tables(const Comparison& comparison, analysis::Report& report);

}  // namespace diffattn::compare
