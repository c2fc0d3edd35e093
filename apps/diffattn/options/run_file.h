// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/train/run_config.h"

namespace diffattn::app {

/// Reads a run file (none if `path` is empty) and sets the `key=value` overrides on top. Throws
/// train::ConfigError with file and line for a wrong key or value. Warns on standard error about
/// keys that a run of this task does not read.
train::RunConfig load_run_config(const std::string& path,
                                 const std::vector<std::string>& overrides);

/// Sets each `key=value`, with the same errors and warnings.
void set_overrides(train::RunConfig& config, const std::vector<std::string>& overrides);

}  // namespace diffattn::app
