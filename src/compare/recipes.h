// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace diffattn::compare {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Returns run-file settings for a small model on a generated task, which take minutes on two
/// cores. Empty for "lm", which needs data. Throws train::ConfigError for an unknown task.
Settings recipe(const std::string& task);

}  // namespace diffattn::compare
