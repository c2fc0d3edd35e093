// SPDX-License-Identifier: Apache-2.0
#include "serve/api/logprobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/api/token_text.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

/// JSON has no infinity: a token that the model cannot choose has -9999, as in the OpenAI API.
double finite(float log_probability) { return std::max(log_probability, -9999.0f); }

Json chat_entry(const io::Tokenizer& tokenizer, int64_t id, float log_probability) {
  const TokenText text = token_text(tokenizer, id);
  Json bytes = Json::array();
  for (const char c : text.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text.name}, {"logprob", finite(log_probability)}, {"bytes", bytes}};
}

}  // namespace

Json completion_logprobs(const io::Tokenizer& tokenizer, const std::vector<Token>& tokens,
                         int64_t count, size_t& characters) {
  Json names = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
  for (const Token& token : tokens) {
    const TokenText text = token_text(tokenizer, token.id);
    names.push_back(text.name);
    offsets.push_back(characters);
    characters += character_count(text.bytes);
    if (!token.log_probability) {
      values.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    values.push_back(finite(*token.log_probability));
    Json best = Json::object();
    for (const Alternative& other : token.alternatives) {
      best.emplace(token_text(tokenizer, other.id).name, finite(other.log_probability));
    }
    best.emplace(text.name, finite(*token.log_probability));
    top.push_back(best);
  }
  return {{"tokens", names},
          {"token_logprobs", values},
          {"top_logprobs", count > 0 ? top : Json()},
          {"text_offset", offsets}};
}

Json chat_logprobs(const io::Tokenizer& tokenizer, const std::vector<Token>& tokens,
                   int64_t count) {
  Json content = Json::array();
  for (const Token& token : tokens) {
    Json entry = chat_entry(tokenizer, token.id, token.log_probability.value_or(0.0f));
    Json top = Json::array();
    for (const Alternative& other : token.alternatives) {
      if (std::cmp_equal(top.size(), count)) break;
      top.push_back(chat_entry(tokenizer, other.id, other.log_probability));
    }
    entry["top_logprobs"] = top;
    content.push_back(entry);
  }
  return {{"content", content}, {"refusal", nullptr}};
}

}  // namespace diffattn::serve
