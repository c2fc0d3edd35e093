// SPDX-License-Identifier: Apache-2.0
//
// The input is the body of a request to the server. Every parser reads it.

#include "serve/api/requests.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

namespace {

const serve::Limits kLimits;

/// Returns true unless `parse` throws ApiError, the only exception that a body may cause.
template <typename Parse>
bool taken(Parse&& parse) {
  try {
    parse();
  } catch (const serve::ApiError& error) {
    fuzz::expect(error.status() == 400, "a bad body has status 400");
    const auto answer = nlohmann::json::parse(error.json());
    fuzz::expect(answer["error"]["message"].is_string(), "an error has a message");
    return false;
  }
  return true;
}

void check(const serve::Generation& request) {
  fuzz::expect(request.n >= 1 && request.n <= kLimits.max_n, "n is in its range");
  fuzz::expect(request.temperature >= 0.0 && request.temperature <= 2.0, "temperature is, too");
  fuzz::expect(request.top_p > 0.0 && request.top_p <= 1.0 && request.top_k >= 0, "top_p, top_k");
  fuzz::expect(request.repetition_penalty > 0.0, "the repetition penalty is positive");
  fuzz::expect(std::cmp_less_equal(request.stop.size(), kLimits.max_stops), "the stops are few");
  for (const std::string& stop : request.stop) {
    fuzz::expect(!stop.empty() && stop.size() <= kLimits.max_stop_bytes, "a stop is a short text");
  }
  fuzz::expect(request.logprobs.value_or(0) <= kLimits.max_logprobs, "alternatives are few");
  fuzz::expect(request.max_tokens.value_or(1) >= 0, "max_tokens is not negative");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  nlohmann::json body;
  if (!taken([&] { body = serve::parse_body(text); })) return 0;
  taken([&] {
    const serve::CompletionRequest request = serve::parse_completion(body, kLimits);
    check(request);
    const auto prompts = static_cast<int64_t>(request.prompts.size());
    fuzz::expect(prompts >= 1 && prompts * request.n <= kLimits.max_sequences,
                 "continuations are few");
  });
  taken([&] {
    const serve::ChatRequest request = serve::parse_chat(body, kLimits);
    check(request);
    fuzz::expect(!request.messages.empty(), "a chat has a message");
    for (const io::ChatMessage& message : request.messages) {
      fuzz::expect(
          message.role == "system" || message.role == "user" || message.role == "assistant",
          "a message has a role");
    }
  });
  taken([&] { serve::parse_tokenize(body); });
  taken([&] {
    for (const int64_t id : serve::parse_detokenize(body)) fuzz::expect(id >= 0, "ids count up");
  });
  return 0;
}
