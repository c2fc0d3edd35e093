// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "io/chat_template/chat_template.h"
#include "serve/api/api_error.h"

// The requests of the OpenAI API that the server understands: every field, its type and range.

namespace diffattn::serve {

/// Limits on what one request may ask for.
struct Limits {
  int64_t max_prompts = 256, max_n = 64;
  int64_t max_sequences = 256;  // prompts times n
  int64_t max_messages = 1024;
  int64_t max_logprobs = 20;
  int64_t max_stops = 16;
  size_t max_stop_bytes = 256;
};

/// Fields that completions and chat have in common.
struct Generation {
  std::string model;                  // empty: whichever there is
  std::optional<int64_t> max_tokens;  // none: the endpoint's default
  int64_t n = 1, top_k = 0;
  double temperature = 1.0, top_p = 1.0;
  double presence_penalty = 0.0, frequency_penalty = 0.0, repetition_penalty = 1.0;
  std::optional<int64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false, stream = false, include_usage = false;
  bool return_token_ids = false;
  std::optional<int64_t>
      logprobs;  // likeliest tokens beside each token; none: no log-probabilities
};

using Ids = std::vector<int64_t>;

struct CompletionRequest : Generation {
  std::vector<std::variant<std::string, Ids>> prompts;
  bool echo = false;
};

struct ChatRequest : Generation {
  std::vector<io::ChatMessage> messages;
};

struct TokenizeRequest {
  std::string text;
  bool add_special_tokens = true;
};

/// All parsers throw ApiError 400.
nlohmann::json parse_body(const std::string& body);
CompletionRequest parse_completion(const nlohmann::json& body, const Limits& limits);
ChatRequest parse_chat(const nlohmann::json& body, const Limits& limits);
TokenizeRequest parse_tokenize(const nlohmann::json& body);
/// Returns the ids of a /detokenize request.
Ids parse_detokenize(const nlohmann::json& body);

}  // namespace diffattn::serve
