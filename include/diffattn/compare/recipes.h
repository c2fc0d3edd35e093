// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace diffattn::compare {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Sizes and schedule with which a generated task is learnt in minutes on two cores, as keys of a
/// run file; docs/results.md says what they give. Empty for "lm", which needs data. Throws
/// train::ConfigError for other names.
Settings recipe(const std::string& task);

}  // namespace diffattn::compare
