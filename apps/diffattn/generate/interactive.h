// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/diffattn/generate/continuation.h"

namespace diffattn::app {

/// Reads prompts from standard input, one per line, and continues each by itself until the input
/// ends. Ctrl-C ends a continuation. Returns the exit code.
int continue_interactively(Generator& generator);

}  // namespace diffattn::app
