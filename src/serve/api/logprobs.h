// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "serve/backend.h"

namespace diffattn::serve {

/// Returns the `logprobs` of a completion: tokens, token_logprobs, top_logprobs and text_offset.
/// `count` likeliest tokens beside each; `characters` of text lie before the first token and are
/// counted on.
nlohmann::json completion_logprobs(const io::Tokenizer& tokenizer, const std::vector<Token>& tokens,
                                   int64_t count, size_t& characters);

/// Returns the `logprobs` of a chat message: {"content": [...]}.
nlohmann::json chat_logprobs(const io::Tokenizer& tokenizer, const std::vector<Token>& tokens,
                             int64_t count);

}  // namespace diffattn::serve
