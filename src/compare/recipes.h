// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace diffattn::compare {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Small sizes for generated tasks, minutes on two cores; docs/results.md has those that were run.
/// Keys of a run file. Empty for "lm", which needs data. Throws train::ConfigError for other names.
Settings recipe(const std::string& task);

}  // namespace diffattn::compare
