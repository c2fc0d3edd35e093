// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/stop_text.h"
#include "serve/api/requests.h"
#include "serve/backend.h"
#include "serve/http/http.h"
#include "serve/metrics.h"

namespace diffattn::serve {

/// Parts of an answer besides its tokens.
struct AnswerPlan {
  bool chat = false, echo = false;
  Generation request = {};
  std::string id = {}, model = {};
  int64_t created = 0;  // seconds since 1970
  std::vector<Ids> prompts = {};
  std::vector<std::string> prompt_texts = {};  // with echo
  Reply::Headers headers = {};
  Clock::time_point arrival = {};
};

/// The answer to one request: turns the tokens of its choices into text and sends it, as it comes
/// or at the end. Choice i continues prompt i / n. Used by one thread at a time.
class Answer {
 public:
  /// Stops a choice whose text has reached a stop string, or whose answer has failed. It may have
  /// ended already.
  using StopChoice = std::function<void(size_t choice)>;

  Answer(AnswerPlan plan, io::Tokenizer tokenizer, std::shared_ptr<Reply> reply, Metrics& metrics,
         StopChoice stop);

  /// Takes news of a choice. Returns true when the answer is complete.
  bool take(const Event& event);
  /// Ends the answer after take() has thrown: with an error, or by closing the connection if there
  /// is no memory for one.
  void fail_now() noexcept;

 private:
  struct Choice {
    io::StreamDecoder decoder;
    io::StopText text;
    Ids ids = {};
    std::string unsent = {};         // text that was not sent yet
    std::vector<Token> tokens = {};  // with logprobs: those that were not sent yet
    size_t characters = 0;           // of the tokens sent
    bool begun = false;              // a stream has sent its first chunk
    std::optional<std::string> finish = {};
    Clock::time_point last = {};  // of the newest token
  };

  void take_token(Choice& choice, const Token& token, bool is_stop_token);
  void finish(Choice& choice, End end);
  void fail(const ApiError& error);
  void send_chunk(size_t index, Choice& choice);
  void send_event(const nlohmann::json& json);
  void complete();
  nlohmann::json envelope() const;
  nlohmann::json usage() const;
  nlohmann::json choice_json(size_t index, Choice& choice);
  nlohmann::json logprobs_json(Choice& choice) const;

  AnswerPlan plan_;
  io::Tokenizer tokenizer_;
  std::shared_ptr<Reply> reply_;
  Metrics& metrics_;
  StopChoice stop_;
  std::vector<Choice> choices_;
  size_t open_;  // choices without a finish
  int64_t generated_ = 0;
  bool begun_ = false;  // the stream
};

}  // namespace diffattn::serve
