// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/train/run_config.h"

namespace diffattn::app {

/// The config of a run file with `key=value` overrides on top. A wrong key or value throws
/// train::ConfigError that says where it stands; one that a run of that task does not read is named
/// on stderr.
train::RunConfig load_run_config(const std::string& path,
                                 const std::vector<std::string>& overrides);

/// Sets each `key=value`; errors and warnings as above.
void set_overrides(train::RunConfig& config, const std::vector<std::string>& overrides);

}  // namespace diffattn::app
