// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "io/chat_prompt.h"
#include "serve/api/requests.h"
#include "serve/backend.h"
#include "serve/http/http.h"
#include "serve/metrics.h"
#include "serve/responder.h"

namespace diffattn::serve {

/// The model as requests see it.
struct ModelCard {
  std::string name;
  int64_t created = 0;  // seconds since 1970
  int64_t vocab_size = 0;
  int64_t max_context = 0;  // tokens of prompt and continuation
  Ids stop_tokens;          // that end every continuation, unless ignore_eos
  io::Tokenizer tokenizer;
  std::optional<io::ChatPrompts> chat;
  std::string no_chat_reason;  // why `chat` is empty
};

struct ServiceOptions {
  Limits limits = {};
  std::string api_key = {};      // empty: none is needed
  std::string cors_origin = {};  // empty: no other page may call; "*": every page may
  bool local_only = true;        // the server listens on this machine alone
  std::string public_host = {};  // a name that it has besides those of this machine
  std::chrono::seconds time_limit{600};
  std::string page;  // HTML of /; empty: none
};

/// The endpoints. Thread-safe.
class Service {
 public:
  Service(ModelCard model, ServiceOptions options);

  /// Sets where jobs go, before the first request.
  void use(Backend& backend) { backend_ = &backend; }
  /// Takes the backend's events.
  Responder& responder() { return responder_; }

  void handle(HttpRequest&& request, const std::shared_ptr<Reply>& reply);
  /// Returns false if handle() answers a request with this head without a look at its body, for
  /// example since the key is wrong.
  bool needs_body(const HttpRequest& head) const;

  /// Refuses new jobs with status 503 from now on.
  void drain() { draining_ = true; }
  /// Number of jobs that are not complete.
  size_t open_jobs() const { return responder_.open(); }
  /// Lets /metrics tell the number of connections. Call it before the first request.
  void count_connections(std::function<size_t()> count) { connections_ = std::move(count); }

 private:
  void answer_errors(const HttpRequest& request, const std::shared_ptr<Reply>& reply,
                     const std::function<void()>& work);
  void route(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  void authorize(const HttpRequest& request) const;
  void check_origin(const HttpRequest& request) const;
  Reply::Headers headers() const;
  void complete(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  void chat(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  void answer(AnswerPlan plan, int64_t default_max_tokens, Ids extra_stops,
              const std::shared_ptr<Reply>& reply);
  void check_model(const Generation& request) const;
  void check_ids(const char* field, const Ids& ids) const;
  Sequence sequence_of(const AnswerPlan& plan, size_t choice, int64_t max_tokens,
                       const Ids& extra_stops, uint64_t seed) const;
  void attend(const HttpRequest& request, const std::shared_ptr<Reply>& reply);
  std::string models() const;
  std::string tokenize(const std::string& body) const;
  std::string detokenize(const std::string& body) const;
  void send(const HttpRequest& request, const std::shared_ptr<Reply>& reply, std::string body,
            const char* type = "application/json");

  const ModelCard model_;
  const ServiceOptions options_;
  Metrics metrics_;
  Responder responder_;
  Backend* backend_ = nullptr;
  std::atomic<bool> draining_ = false;
  std::atomic<uint64_t> next_job_ = 0;
  std::function<size_t()> connections_ = [] { return size_t{0}; };
};

}  // namespace diffattn::serve
