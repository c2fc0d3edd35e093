// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace diffattn::compare {

/// Returns the XXH64 of a model folder's config.json and weights. It does not depend on how files
/// divide the weights. Throws io::Error if the folder holds no model.
std::string model_digest(const std::string& folder);

}  // namespace diffattn::compare
