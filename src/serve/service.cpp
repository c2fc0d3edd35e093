// SPDX-License-Identifier: Apache-2.0
#include "serve/service.h"

#include <arpa/inet.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "diffattn/io/error.h"
#include "serve/api/token_text.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCompletionTokens = 16;  // the default of the OpenAI API
constexpr int64_t kChatTokens = 1024;
constexpr int64_t kAttentionTokens = 2048;  // of a text whose attention is shown

/// Returns true if both are equal, in a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

uint64_t random_seed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::string random_id(const char* prefix) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id = prefix;
  for (uint64_t bits : {random_seed(), random_seed()}) {
    for (int i = 0; i < 12; ++i, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

int64_t now_in_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json names_of(const io::Tokenizer& tokenizer, const Ids& ids) {
  Json names = Json::array();
  for (const int64_t id : ids) names.push_back(token_text(tokenizer, id).name);
  return names;
}

/// Throws ApiError if a list of tokens is longer than `most`: answers have each of them as text.
void check_count(const Ids& ids, int64_t most) {
  if (std::ssize(ids) <= most) return;
  throw ApiError(
      400,
      "tokens: expected at most " + std::to_string(most) + ", got " + std::to_string(ids.size()),
      "tokens");
}

/// Returns the Host header without its port.
std::string host_name(const std::string& host) {
  if (!host.starts_with('[')) return host.substr(0, host.rfind(':'));
  const size_t close = host.find(']');
  return close == host.npos ? host : host.substr(0, close + 1);
}

/// Returns true if a host name can only mean this machine. A name that merely begins as a loopback
/// address, such as 127.0.0.1.evil.example, may point anywhere.
bool is_this_machine(const std::string& name) {
  if (name == "localhost" || name == "[::1]" || name == "::1") return true;
  in_addr address = {};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

/// Returns the paths that metrics may name: a client must not make up new ones.
std::string known_path(const std::string& path) {
  static constexpr std::array<std::string_view, 9> kPaths{
      "/",          "/v1/completions", "/v1/chat/completions",
      "/v1/models", "/tokenize",       "/detokenize",
      "/health",    "/metrics",        "/attention"};
  return std::ranges::find(kPaths, path) != kPaths.end() ? path : "other";
}

}  // namespace

Service::Service(ModelCard model, ServiceOptions options)
    : model_(std::move(model)), options_(std::move(options)) {}

void Service::handle(HttpRequest&& request, const std::shared_ptr<Reply>& reply) {
  answer_errors(request, reply, [&] { route(request, reply); });
}

/// Runs `work`, and answers with the error if it throws one.
void Service::answer_errors(const HttpRequest& request, const std::shared_ptr<Reply>& reply,
                            const std::function<void()>& work) {
  const auto refuse = [&](const ApiError& error) {
    metrics_.count_request(known_path(request.path), error.status());
    Reply::Headers headers = this->headers();
    if (error.status() == 429 || error.status() == 503) headers.emplace_back("Retry-After", "1");
    if (error.status() == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
    reply->send(error.status(), error.json(), "application/json", std::move(headers));
  };
  try {
    work();
  } catch (const ApiError& error) {
    refuse(error);
  } catch (const io::Error& error) {  // such as a text that the tokenizer refuses
    refuse(ApiError(400, error.what()));
  } catch (const std::bad_alloc&) {
    refuse(ApiError(503, "the server is out of memory"));
  } catch (const std::exception&) {
    refuse(ApiError(500, "the server could not answer the request"));
  }
}

bool Service::needs_body(const HttpRequest& head) const {
  try {
    check_origin(head);
    authorize(head);
  } catch (const ApiError&) {
    return false;
  }
  return head.method == "POST";
}

void Service::authorize(const HttpRequest& request) const {
  if (options_.api_key.empty()) return;
  static constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.authorization;
  if (given.starts_with(kScheme) &&
      equal_in_constant_time(given.substr(kScheme.size()), options_.api_key)) {
    return;
  }
  throw ApiError(401,
                 given.empty() ? "expected an API key: Authorization: Bearer KEY"
                               : "Incorrect API key provided",
                 "", "invalid_api_key");
}

/// Refuses pages of other sites, which a browser lets send requests even if they may not read the
/// answers, and names of other hosts that were made to point to this machine.
void Service::check_origin(const HttpRequest& request) const {
  const std::string& origin = request.origin;
  const bool own =
      origin.empty() || origin == "http://" + request.host || origin == "https://" + request.host;
  if (!own && options_.cors_origin != "*" && origin != options_.cors_origin) {
    throw ApiError(403, "this server answers no pages of other sites; see --cors-origin");
  }
  const std::string name = host_name(request.host);
  if (options_.local_only && !name.empty() && !is_this_machine(name) &&
      name != options_.public_host) {
    throw ApiError(403,
                   "this server answers under names of this machine only; see --host and "
                   "--public-host");
  }
}

Reply::Headers Service::headers() const {
  if (options_.cors_origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", options_.cors_origin}};
}

void Service::route(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  const std::string& path = request.path;
  const bool get = request.method == "GET" || request.method == "HEAD";
  check_origin(request);
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
    return reply->send(204, "", "text/plain",
                       {{"Access-Control-Allow-Origin", options_.cors_origin},
                        {"Access-Control-Allow-Methods", "GET, POST"},
                        {"Access-Control-Allow-Headers", "authorization, content-type"},
                        {"Access-Control-Max-Age", "86400"}});
  }
  const auto needs = [&](const char* method) {
    if (get != (method == std::string_view("GET")) || (!get && request.method != "POST")) {
      throw ApiError(405, path + ": expected " + method + ", got " + io::in_quotes(request.method));
    }
  };
  if (path == "/health") {
    needs("GET");
    if (draining_) throw ApiError(503, "the server is stopping");
    return send(request, reply, "{\"status\":\"ok\"}");
  }
  if (path == "/" && !options_.page.empty()) {
    needs("GET");
    return send(request, reply, options_.page, "text/html; charset=utf-8");
  }
  authorize(request);
  if (path == "/v1/completions") return needs("POST"), complete(request, reply);
  if (path == "/v1/chat/completions") return needs("POST"), chat(request, reply);
  if (path == "/v1/models") return needs("GET"), send(request, reply, models());
  if (path == "/tokenize") return needs("POST"), send(request, reply, tokenize(request.body));
  if (path == "/detokenize") return needs("POST"), send(request, reply, detokenize(request.body));
  if (path == "/attention") return needs("POST"), attend(request, reply);
  if (path == "/metrics") {
    needs("GET");
    return send(request, reply, metrics_.text(backend_->load(), connections_()),
                "text/plain; version=0.0.4");
  }
  throw ApiError(404, "no such path: " + io::in_quotes(path));
}

void Service::send(const HttpRequest& request, const std::shared_ptr<Reply>& reply,
                   std::string body, const char* type) {
  metrics_.count_request(known_path(request.path), 200);
  reply->send(200, std::move(body), type, headers());
}

std::string Service::models() const {
  return text_of({{"object", "list"},
                  {"data",
                   {{{"id", model_.name},
                     {"object", "model"},
                     {"created", model_.created},
                     {"owned_by", "diffattn"},
                     {"chat", model_.chat.has_value()},
                     {"max_model_len", model_.max_context}}}}});
}

std::string Service::tokenize(const std::string& body) const {
  const TokenizeRequest request = parse_tokenize(parse_body(body));
  const auto ids = model_.tokenizer.encode(
      request.text, {.add_special_tokens = request.add_special_tokens, .special_from_text = false});
  return text_of({{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model_.max_context}});
}

std::string Service::detokenize(const std::string& body) const {
  const Ids ids = parse_detokenize(parse_body(body));
  check_count(ids, model_.max_context);
  const std::vector<io::TokenId> tokens(ids.begin(), ids.end());
  return text_of({{"prompt", model_.tokenizer.decode(tokens, /*skip_special_tokens=*/false)},
                  {"token_strs", names_of(model_.tokenizer, ids)}});
}

/// Answers with the attention of a text's last token: both maps and their difference.
void Service::attend(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  const Ids ids = parse_detokenize(parse_body(request.body));
  check_ids("tokens", ids);
  check_count(ids, std::min(model_.max_context, kAttentionTokens));
  if (draining_) throw ApiError(503, "the server is stopping");
  const auto write = [this, ids, reply, request](const AttentionRow& row) {
    if (!row.error.empty()) throw ApiError(500, row.error);
    Json heads = Json::array();
    for (const AttentionRow::Head& head : row.heads) {
      heads.push_back({{"lambda", head.lambda},
                       {"first", head.first},
                       {"second", head.second},
                       {"difference", head.difference}});
    }
    send(request, reply, text_of({{"tokens", names_of(model_.tokenizer, ids)}, {"heads", heads}}));
  };
  const auto answer = [this, write, reply, request](const AttentionRow& row) {
    try {
      answer_errors(request, reply, [&] { write(row); });
    } catch (const std::exception&) {  // no memory for the error
      reply->abandon();
    }
  };
  const bool taken = backend_->attend(ids, [this, answer, reply](AttentionRow&& row) {
    try {
      responder_.run_soon([answer, row = std::move(row)] { answer(row); });
    } catch (const std::exception&) {  // no memory to queue the work
      reply->abandon();
    }
  });
  if (!taken) throw ApiError(429, "too many requests for attention; try again later");
}

void Service::check_ids(const char* field, const Ids& ids) const {
  if (ids.empty()) throw ApiError(400, std::string(field) + ": expected a token, got none", field);
  for (const int64_t id : ids) {
    if (id < model_.vocab_size) continue;
    throw ApiError(400,
                   std::string(field) + ": expected token ids below " +
                       std::to_string(model_.vocab_size) + ", got " + std::to_string(id),
                   field);
  }
}

void Service::check_model(const Generation& request) const {
  if (request.model.empty() || request.model == model_.name) return;
  throw ApiError(404,
                 "The model " + io::in_quotes(request.model) +
                     " does not exist; this server has '" + model_.name + "'",
                 "model", "model_not_found");
}

void Service::complete(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  CompletionRequest parsed = parse_completion(parse_body(request.body), options_.limits);
  AnswerPlan plan{.echo = parsed.echo, .arrival = Clock::now()};
  for (auto& prompt : parsed.prompts) {
    if (auto* const text = std::get_if<std::string>(&prompt)) {
      // Special tokens in a text are text: ids are the way to use them.
      const auto ids = model_.tokenizer.encode(*text, {.special_from_text = false});
      plan.prompts.emplace_back(ids.begin(), ids.end());
      if (parsed.echo) plan.prompt_texts.push_back(std::move(*text));
      continue;
    }
    plan.prompts.push_back(std::move(std::get<Ids>(prompt)));
    if (parsed.echo) {
      const std::vector<io::TokenId> ids(plan.prompts.back().begin(), plan.prompts.back().end());
      plan.prompt_texts.push_back(model_.tokenizer.decode(ids));
    }
  }
  plan.request = std::move(parsed);
  answer(std::move(plan), kCompletionTokens, {}, reply);
}

void Service::chat(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  ChatRequest parsed = parse_chat(parse_body(request.body), options_.limits);
  check_model(parsed);
  if (!model_.chat) throw ApiError(400, model_.no_chat_reason, "messages");
  AnswerPlan plan{.chat = true, .arrival = Clock::now()};
  try {
    const auto ids = model_.chat->prompt(parsed.messages).ids;
    plan.prompts.emplace_back(ids.begin(), ids.end());
  } catch (const io::Error& error) {
    throw ApiError(400, "messages: the chat template refuses them: " + error.message(), "messages");
  }
  plan.request = std::move(parsed);
  const auto& ends = model_.chat->ends();
  answer(std::move(plan), kChatTokens, Ids(ends.begin(), ends.end()), reply);
}

Sequence Service::sequence_of(const AnswerPlan& plan, size_t choice, int64_t max_tokens,
                              const Ids& extra_stops, uint64_t seed) const {
  const Generation& request = plan.request;
  Sequence sequence;
  sequence.prompt = plan.prompts[choice / static_cast<size_t>(request.n)];
  sequence.rules = {.max_tokens = max_tokens,
                    .temperature = request.temperature,
                    .top_p = request.top_p,
                    .top_k = request.top_k,
                    .repetition_penalty = request.repetition_penalty,
                    .presence_penalty = request.presence_penalty,
                    .frequency_penalty = request.frequency_penalty,
                    .seed = seed + choice * 0xD1B54A32D192ED03ull,  // as `diffattn generate`
                    .stop_tokens = {}};
  if (!request.ignore_eos) {
    sequence.rules.stop_tokens = model_.stop_tokens;
    sequence.rules.stop_tokens.insert(sequence.rules.stop_tokens.end(), extra_stops.begin(),
                                      extra_stops.end());
  }
  sequence.alternatives = request.logprobs.value_or(0);
  sequence.score_prompt = plan.echo && request.logprobs.has_value();
  return sequence;
}

/// Checks prompts, makes a job of them and queues it.
void Service::answer(AnswerPlan plan, int64_t default_max_tokens, Ids extra_stops,
                     const std::shared_ptr<Reply>& reply) {
  check_model(plan.request);
  plan.id = random_id(plan.chat ? "chatcmpl-" : "cmpl-");
  plan.created = now_in_seconds();
  plan.model = model_.name;
  plan.headers = headers();
  const char* const field = plan.chat ? "messages" : "prompt";
  Job job{.number = ++next_job_, .deadline = plan.arrival + options_.time_limit};
  const uint64_t seed =
      plan.request.seed ? static_cast<uint64_t>(*plan.request.seed) : random_seed();
  const size_t choices = plan.prompts.size() * static_cast<size_t>(plan.request.n);
  int64_t prompt_tokens = 0;
  for (size_t i = 0; i < choices; ++i) {
    const Ids& prompt = plan.prompts[i / static_cast<size_t>(plan.request.n)];
    const auto length = std::ssize(prompt);
    prompt_tokens += length;
    check_ids(field, prompt);
    const int64_t room = model_.max_context - length;
    const int64_t wanted =
        plan.request.max_tokens.value_or(std::min(default_max_tokens, std::max<int64_t>(1, room)));
    if (wanted > room) {
      throw ApiError(400,
                     "This model's maximum context length is " +
                         std::to_string(model_.max_context) + " tokens. However, you requested " +
                         std::to_string(length + wanted) + " tokens (" + std::to_string(length) +
                         " in the " + field + ", " + std::to_string(wanted) + " in the completion)",
                     field, "context_length_exceeded");
    }
    job.sequences.push_back(sequence_of(plan, i, wanted, extra_stops, seed));
  }
  const uint64_t number = job.number;
  const auto pending =
      std::make_shared<Answer>(std::move(plan), model_.tokenizer, reply, metrics_,
                               [this, number](size_t choice) { backend_->cancel(number, choice); });
  responder_.add(number, pending);
  try {
    // Only now: after drain() the server waits for the jobs that the responder already knows.
    if (draining_) throw ApiError(503, "the server is stopping");
    if (!backend_->submit(std::move(job))) {
      throw ApiError(429, "the queue of this server is full; try again later", "", "queue_full");
    }
  } catch (...) {
    responder_.forget(number);
    throw;
  }
  metrics_.count_prompt_tokens(prompt_tokens);
  reply->on_gone([this, number] {
    responder_.forget(number);  // first: without memory nothing is cancelled
    backend_->cancel(number);
  });
}

}  // namespace diffattn::serve
