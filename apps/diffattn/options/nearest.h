// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace diffattn::app {

/// Returns "; did you mean '--model'?" for the name that is most like `word`, or an empty string if
/// no name is near enough to be a typing error.
std::string nearest_hint(const std::string& word, const std::vector<std::string>& names);

}  // namespace diffattn::app
