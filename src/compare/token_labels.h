// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"

namespace diffattn::compare {

/// Returns the text of each token, or its id if there is no tokenizer or the token has no text.
std::vector<std::string> token_labels(const std::vector<int64_t>& ids,
                                      const std::optional<io::Tokenizer>& tokenizer);

}  // namespace diffattn::compare
