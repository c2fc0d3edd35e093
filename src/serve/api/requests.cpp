// SPDX-License-Identifier: Apache-2.0
#include "serve/api/requests.h"

#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"
#include "serve/api/fields.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr size_t kMaxTextBytes = size_t{1} << 30;  // the limit on the body is smaller
constexpr size_t kMaxDepth = 16;

std::string element(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

std::vector<std::string> parse_stop(Fields& fields, const Limits& limits) {
  const Json* const found = fields.value("stop");
  if (found == nullptr) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  const std::string expected = "up to " + std::to_string(limits.max_stops) + " strings of 1 to " +
                               std::to_string(limits.max_stop_bytes) + " bytes";
  if (std::cmp_greater(list.size(), limits.max_stops)) fields.fail("stop", expected, *found);
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string()) fields.fail("stop", expected, stop);
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty() || stops.back().size() > limits.max_stop_bytes) {
      fields.fail("stop", expected, stop);
    }
  }
  return stops;
}

void parse_generation(Fields& fields, const Limits& limits, Generation& to) {
  to.model = fields.text("model", 4096, "");
  to.max_tokens = fields.optional_integer("max_tokens", 0, kMaxTokens);
  to.n = fields.integer("n", 1, limits.max_n, 1);
  to.temperature = fields.number("temperature", 0.0, 2.0, 1.0);
  to.top_p = fields.number("top_p", 0.0, 1.0, 1.0);
  if (to.top_p == 0.0) to.top_p = 1e-9;  // the likeliest token alone
  to.top_k = fields.integer("top_k", -1, kMaxTokens, 0);
  if (to.top_k < 0) to.top_k = 0;  // all tokens
  to.presence_penalty = fields.number("presence_penalty", -2.0, 2.0, 0.0);
  to.frequency_penalty = fields.number("frequency_penalty", -2.0, 2.0, 0.0);
  to.repetition_penalty = fields.number("repetition_penalty", 0.01, 100.0, 1.0);
  to.seed = fields.optional_integer("seed", INT64_MIN, INT64_MAX);
  to.stop = parse_stop(fields, limits);
  to.ignore_eos = fields.flag("ignore_eos", false);
  to.return_token_ids = fields.flag("return_token_ids", false);
  to.stream = fields.flag("stream", false);
  if (const Json* const options = fields.value("stream_options")) {
    if (!to.stream) fields.fail("stream_options", "\"stream\": true beside it", *options);
    Fields inner(*options, "stream_options.");
    to.include_usage = inner.flag("include_usage", false);
    inner.refuse_others();
  }
  fields.ignore("user");
  fields.ignore("metadata");
  fields.ignore("store");
  fields.ignore("service_tier");
  fields.unsupported("logit_bias", Json::object());
}

Ids parse_ids(Fields& fields, const std::string& name, const Json& list) {
  Ids ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      fields.fail(name, "token ids, which are integers of at least 0", id);
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

/// Reads a string, a list of strings, a list of ids or a list of lists of ids.
void parse_prompt(Fields& fields, const Limits& limits, CompletionRequest& to) {
  static constexpr char kExpected[] =
      "a string, a list of strings, a list of token ids or a list of such lists";
  const Json* const found = fields.value("prompt");
  if (found == nullptr) throw ApiError(400, std::string("prompt: expected ") + kExpected, "prompt");
  if (found->is_string()) {
    to.prompts.emplace_back(found->get<std::string>());
    return;
  }
  if (!found->is_array() || found->empty()) fields.fail("prompt", kExpected, *found);
  if (found->front().is_number()) {
    to.prompts.emplace_back(parse_ids(fields, "prompt", *found));
    return;
  }
  if (std::cmp_greater(found->size(), limits.max_prompts)) {
    fields.fail("prompt", "at most " + std::to_string(limits.max_prompts) + " prompts", *found);
  }
  for (size_t i = 0; i < found->size(); ++i) {
    const Json& one = (*found)[i];
    if (one.is_string()) {
      to.prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      to.prompts.emplace_back(parse_ids(fields, element("prompt", i), one));
    } else {
      fields.fail(element("prompt", i), "a string or a list of token ids", one);
    }
  }
}

/// Returns the text of a message: a string, or parts that are all text.
std::string parse_content(Fields& message) {
  const Json* const found = message.value("content");
  if (found == nullptr) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) message.fail("content", "a string or a list of parts", *found);
  std::string text;
  for (const Json& part : *found) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      message.fail("content", "parts of the type text, since this server has no others", part);
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

io::ChatMessage parse_message(const Json& json, size_t index) {
  Fields fields(json, element("messages", index) + ".");
  io::ChatMessage message{fields.text("role", 64, ""), parse_content(fields)};
  if (message.role == "developer") message.role = "system";
  if (message.role != "system" && message.role != "user" && message.role != "assistant") {
    fields.fail("role", "system, developer, user or assistant", message.role);
  }
  fields.ignore("name");
  fields.unsupported("tool_calls", Json::array());
  fields.unsupported("refusal", "");
  fields.unsupported("function_call", Json());
  fields.unsupported("audio", Json());
  fields.ignore("annotations");
  fields.refuse_others();
  return message;
}

}  // namespace

Json parse_body(const std::string& body) {
  try {
    return io::parse_json(body, "the body", {.max_depth = kMaxDepth});
  } catch (const io::Error& error) {
    throw ApiError(400, error.what());
  }
}

CompletionRequest parse_completion(const Json& body, const Limits& limits) {
  Fields fields(body);
  CompletionRequest request;
  parse_generation(fields, limits, request);
  parse_prompt(fields, limits, request);
  request.echo = fields.flag("echo", false);
  request.logprobs = fields.optional_integer("logprobs", 0, limits.max_logprobs);
  fields.unsupported("suffix", "");
  fields.unsupported("best_of", request.n);
  fields.refuse_others();
  if (std::ssize(request.prompts) * request.n > limits.max_sequences) {
    throw ApiError(400,
                   "n: expected at most " + std::to_string(limits.max_sequences) +
                       " continuations of all prompts together, got " +
                       std::to_string(std::ssize(request.prompts) * request.n),
                   "n");
  }
  if (request.max_tokens == 0 && !request.echo) {
    throw ApiError(400, "max_tokens: expected at least 1 without echo, got 0", "max_tokens");
  }
  return request;
}

ChatRequest parse_chat(const Json& body, const Limits& limits) {
  Fields fields(body);
  ChatRequest request;
  parse_generation(fields, limits, request);
  if (const auto newer = fields.optional_integer("max_completion_tokens", 1, kMaxTokens)) {
    request.max_tokens = newer;
  }
  if (request.max_tokens == 0) {
    throw ApiError(400, "max_tokens: expected at least 1, got 0", "max_tokens");
  }
  const Json* const messages = fields.value("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      std::cmp_greater(messages->size(), limits.max_messages)) {
    fields.fail("messages", "a list of 1 to " + std::to_string(limits.max_messages) + " messages",
                messages == nullptr ? Json() : *messages);
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    request.messages.push_back(parse_message((*messages)[i], i));
  }
  const bool wants = fields.flag("logprobs", false);
  const auto top = fields.optional_integer("top_logprobs", 0, limits.max_logprobs);
  if (top && !wants) fields.fail("top_logprobs", "\"logprobs\": true beside it", *top);
  if (wants) request.logprobs = top.value_or(0);
  fields.unsupported("tools", Json::array());
  fields.unsupported("tool_choice", "none");
  fields.unsupported("functions", Json::array());
  fields.unsupported("function_call", "none");
  fields.unsupported("response_format", {{"type", "text"}});
  fields.unsupported("modalities", Json::array({"text"}));
  fields.unsupported("audio", Json());
  fields.unsupported("prediction", Json());
  fields.unsupported("reasoning_effort", "none");
  fields.ignore("parallel_tool_calls");
  fields.refuse_others();
  return request;
}

TokenizeRequest parse_tokenize(const Json& body) {
  Fields fields(body);
  TokenizeRequest request;
  const char* const name = body.contains("content") ? "content" : "prompt";
  const Json* const text = fields.value(name);
  if (text == nullptr || !text->is_string()) {
    fields.fail(name, "a string", text == nullptr ? Json() : *text);
  }
  request.text = fields.text(name, kMaxTextBytes, "");
  request.add_special_tokens = fields.flag("add_special_tokens", true);
  fields.ignore("model");
  fields.refuse_others();
  return request;
}

Ids parse_detokenize(const Json& body) {
  Fields fields(body);
  const Json* const tokens = fields.value("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    fields.fail("tokens", "a list of token ids", tokens == nullptr ? Json() : *tokens);
  }
  fields.ignore("model");
  fields.refuse_others();
  return parse_ids(fields, "tokens", *tokens);
}

}  // namespace diffattn::serve
