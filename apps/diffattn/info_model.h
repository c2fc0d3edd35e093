// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/diffattn/terminal/json_output.h"

namespace diffattn::app {

/// Returns what a model folder holds and what the model needs, from config.json and the headers of
/// the weight files. Throws io::Error.
Json model_info(const std::string& folder);

void print_model_info(const Json& info);

}  // namespace diffattn::app
