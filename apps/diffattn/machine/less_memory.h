// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace diffattn::app {

/// Returns a sentence with the options of a verb that lower its memory. Needs no torch.
std::string less_memory(const std::string& verb);

}  // namespace diffattn::app
