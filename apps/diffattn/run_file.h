// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/train/run_config.h"

namespace diffattn::app {

/// The config of a run file with `key=value` overrides on top, resolved. A wrong key or value
/// throws train::ConfigError that says where it stands.
train::RunConfig load_run_config(const std::string& path,
                                 const std::vector<std::string>& overrides);

/// Sets each `key=value`; throws train::ConfigError.
void set_overrides(train::RunConfig& config, const std::vector<std::string>& overrides);

}  // namespace diffattn::app
