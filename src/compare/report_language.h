// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compare/compare.h"

namespace diffattn::compare {

/// Adds the loss by position in the context and the bits per byte by kind of text to `report`, if
/// the models are language models.
void add_language(const Comparison& comparison, analysis::Report& report);

}  // namespace diffattn::compare
