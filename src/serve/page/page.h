// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace diffattn::serve {

/// The HTML of the page at /, which build.py bundles.
std::string_view page();

}  // namespace diffattn::serve
