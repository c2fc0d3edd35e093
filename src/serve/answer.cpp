// SPDX-License-Identifier: Apache-2.0
#include "serve/answer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/logprobs.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError error_of(const Event& event) {
  switch (*event.end) {
    case End::kTimeout:
      return {504, "the request took longer than the time limit of this server", "", "timeout"};
    case End::kNotFinite:
      return {500, "the model's logits are NaN or infinite; its weights overflow"};
    default: return {500, event.message};
  }
}

}  // namespace

Answer::Answer(AnswerPlan plan, io::Tokenizer tokenizer, std::shared_ptr<Reply> reply,
               Metrics& metrics, StopChoice stop)
    : plan_(std::move(plan)),
      tokenizer_(std::move(tokenizer)),
      reply_(std::move(reply)),
      metrics_(metrics),
      stop_(std::move(stop)) {
  open_ = plan_.prompts.size() * static_cast<size_t>(plan_.request.n);
  for (size_t i = 0; i < open_; ++i) {
    Choice& choice = choices_.emplace_back(
        Choice{.decoder = io::StreamDecoder(tokenizer_), .text = io::StopText(plan_.request.stop)});
    if (plan_.echo) choice.unsent = plan_.prompt_texts[i / static_cast<size_t>(plan_.request.n)];
  }
}

bool Answer::take(const Event& event) {
  Choice& choice = choices_[event.sequence];
  if (choice.finish || open_ == 0) return open_ == 0;
  if (plan_.request.logprobs) {
    choice.tokens.insert(choice.tokens.end(), event.prompt.begin(), event.prompt.end());
  }
  if (event.end && *event.end != End::kStopToken && *event.end != End::kLength) {
    fail(error_of(event));
    return true;
  }
  if (event.token) take_token(choice, *event.token, event.end == End::kStopToken);
  if (event.end) finish(choice, *event.end);
  if (!event.end && choice.text.found()) {
    finish(choice, End::kStopToken);
    stop_(event.sequence);
  }
  if (plan_.request.stream && (choice.finish || !choice.unsent.empty())) {
    send_chunk(event.sequence, choice);
  }
  if (choice.finish && --open_ == 0) complete();
  return open_ == 0;
}

void Answer::take_token(Choice& choice, const Token& token, bool is_stop_token) {
  const auto now = Clock::now();
  if (choice.ids.empty()) {
    metrics_.first_token(seconds_between(plan_.arrival, now));
  } else {
    metrics_.next_token(seconds_between(choice.last, now));
  }
  choice.last = now;
  ++generated_;
  choice.ids.push_back(token.id);
  if (is_stop_token) return;  // it is no part of the text
  if (plan_.request.logprobs) choice.tokens.push_back(token);
  choice.unsent += choice.text.push(choice.decoder.push(static_cast<io::TokenId>(token.id)));
}

void Answer::finish(Choice& choice, End end) {
  choice.unsent += choice.text.finish(choice.decoder.finish());
  choice.finish = end == End::kLength && !choice.text.found() ? "length" : "stop";
}

/// Ends the whole answer with an error. Nobody reads the choices that still run.
void Answer::fail(const ApiError& error) {
  open_ = 0;
  metrics_.count_request(plan_.chat ? "/v1/chat/completions" : "/v1/completions", error.status());
  if (begun_) {
    reply_->write("data: " + error.json() + "\n\n");
    reply_->end();
  } else {
    reply_->send(error.status(), error.json(), "application/json", plan_.headers);
  }
  try {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].finish) stop_(i);
    }
  } catch (const std::exception&) {  // no memory to stop them: they end unread
  }
}

void Answer::fail_now() noexcept {
  try {
    fail({500, "the server could not write the answer; it may be out of memory"});
  } catch (const std::exception&) {
    reply_->abandon();
  }
}

Json Answer::envelope() const {
  const std::string kind = plan_.chat ? "chat.completion" : "text_completion";
  return {{"id", plan_.id},
          {"object", plan_.chat && plan_.request.stream ? kind + ".chunk" : kind},
          {"created", plan_.created},
          {"model", plan_.model}};
}

Json Answer::usage() const {
  int64_t prompt_tokens = 0;
  for (const Ids& prompt : plan_.prompts) prompt_tokens += std::ssize(prompt);
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", generated_},
          {"total_tokens", prompt_tokens + generated_}};
}

Json Answer::logprobs_json(Choice& choice) const {
  if (!plan_.request.logprobs) return nullptr;
  const std::vector<Token> tokens = std::exchange(choice.tokens, {});
  return plan_.chat
             ? chat_logprobs(tokenizer_, tokens, *plan_.request.logprobs)
             : completion_logprobs(tokenizer_, tokens, *plan_.request.logprobs, choice.characters);
}

/// Returns a choice with the text and the tokens that were not sent before.
Json Answer::choice_json(size_t index, Choice& choice) {
  Json json{{"index", index}, {"finish_reason", nullptr}};
  json["logprobs"] = logprobs_json(choice);
  if (choice.finish) json["finish_reason"] = *choice.finish;
  const std::string text = std::exchange(choice.unsent, {});
  if (!plan_.chat) {
    json["text"] = text;
  } else if (!plan_.request.stream) {
    json["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    json["delta"] = Json::object();
    if (!choice.begun) json["delta"]["role"] = "assistant";
    if (!choice.begun || !text.empty()) json["delta"]["content"] = text;
  }
  if (plan_.request.return_token_ids && choice.finish) {
    json["token_ids"] = choice.ids;
    json["prompt_token_ids"] = plan_.prompts[index / static_cast<size_t>(plan_.request.n)];
  }
  return json;
}

void Answer::send_chunk(size_t index, Choice& choice) {
  Json chunk = envelope();
  chunk["choices"] = Json::array({choice_json(index, choice)});
  if (plan_.request.include_usage) chunk["usage"] = nullptr;
  choice.begun = true;
  send_event(chunk);
}

void Answer::send_event(const Json& json) {
  if (!begun_) {
    Reply::Headers headers = plan_.headers;
    headers.emplace_back("Cache-Control", "no-cache");
    reply_->begin("text/event-stream", std::move(headers));
    begun_ = true;
  }
  reply_->write("data: " + text_of(json) + "\n\n");
}

void Answer::complete() {
  metrics_.finished(seconds_between(plan_.arrival, Clock::now()));
  metrics_.count_request(plan_.chat ? "/v1/chat/completions" : "/v1/completions", 200);
  Json whole = envelope();
  whole["choices"] = Json::array();
  if (plan_.request.stream) {
    if (plan_.request.include_usage) {
      whole["usage"] = usage();
      send_event(whole);
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
    return;
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    whole["choices"].push_back(choice_json(i, choices_[i]));
  }
  whole["usage"] = usage();
  reply_->send(200, text_of(whole), "application/json", plan_.headers);
}

}  // namespace diffattn::serve
