// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "verbs.h"

namespace diffattn::app {

/// Adds `module` to the verb `bench`.
Run add_bench_module(CLI::App& bench);

}  // namespace diffattn::app
