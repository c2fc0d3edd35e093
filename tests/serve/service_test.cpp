// SPDX-License-Identifier: Apache-2.0
#include "serve/service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/serve/recorded_reply.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

struct RecordedBackend : Backend {
  std::vector<Job> jobs;
  std::vector<uint64_t> cancelled;
  bool full = false, has_memory = true;

  bool submit(Job job) override {
    if (!has_memory) throw std::bad_alloc();
    if (!full) jobs.push_back(std::move(job));
    return !full;
  }
  void cancel(uint64_t job, std::optional<size_t>) override { cancelled.push_back(job); }
  bool attend(std::vector<int64_t> tokens, std::function<void(AttentionRow&&)> done) override {
    AttentionRow row;
    row.heads.push_back({.lambda = 0.5f,
                         .first = std::vector<float>(tokens.size(), 1.0f),
                         .second = std::vector<float>(tokens.size(), 0.5f),
                         .difference = std::vector<float>(tokens.size(), 0.75f)});
    if (!full) done(std::move(row));
    return !full;
  }
  BackendLoad load() const override { return {.running = 1, .waiting = 0, .pages = 1}; }
};

ModelCard card() {
  return {.name = "small",
          .created = 5,
          .vocab_size = 257,
          .max_context = 32,
          .stop_tokens = {256},
          .tokenizer = io::Tokenizer::bytes(),
          .chat = {},
          .no_chat_reason = "no template here"};
}

struct ServiceTest : testing::Test {
  RecordedBackend backend;
  std::shared_ptr<RecordedReply> reply;

  int ask(Service& service, HttpRequest request, int failures = 0) {
    service.use(backend);
    auto made = std::make_shared<FailingReply>();
    made->failures = failures;
    reply = made;
    service.handle(std::move(request), reply);
    return reply->status;
  }
  int post(Service& service, const std::string& path, const std::string& body, int failures = 0) {
    return ask(service, {.method = "POST", .path = path, .body = body}, failures);
  }
  int get(Service& service, const std::string& path) {
    return ask(service, {.method = "GET", .path = path, .body = ""});
  }
  void wait_for_the_end() const {
    for (int i = 0; i < 12000 && !reply->ended && !reply->abandoned; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::string message() const { return reply->json()["error"]["message"]; }
};

TEST_F(ServiceTest, MakesJobsOfRequests) {
  Service service(card(), {});
  EXPECT_EQ(
      post(service, "/v1/completions",
           R"({"prompt": ["ab", [1, 2, 3]], "n": 2, "seed": 9, "max_tokens": 4, "top_k": 5})"),
      0);
  ASSERT_EQ(backend.jobs.size(), 1u);
  const Job& job = backend.jobs[0];
  ASSERT_EQ(job.sequences.size(), 4u);
  EXPECT_EQ(job.sequences[1].prompt, (Ids{97, 98}));
  EXPECT_EQ(job.sequences[2].prompt, (Ids{1, 2, 3}));
  EXPECT_EQ(job.sequences[0].rules.seed, 9u);
  EXPECT_NE(job.sequences[1].rules.seed, 9u);
  EXPECT_EQ(job.sequences[0].rules.max_tokens, 4);
  EXPECT_EQ(job.sequences[0].rules.top_k, 5);
  EXPECT_EQ(job.sequences[0].rules.stop_tokens, Ids{256});
  EXPECT_EQ(service.open_jobs(), 1u);
  reply->gone();  // the client goes away
  EXPECT_EQ(backend.cancelled, std::vector<uint64_t>{job.number});
  EXPECT_EQ(service.open_jobs(), 0u);
}

TEST_F(ServiceTest, SpecialTokensInTextAreText) {
  Service service(card(), {});
  post(service, "/v1/completions", R"({"prompt": "<|endoftext|>", "ignore_eos": true})");
  EXPECT_EQ(backend.jobs.at(0).sequences[0].prompt.size(), 13u);
  EXPECT_TRUE(backend.jobs[0].sequences[0].rules.stop_tokens.empty());
}

TEST_F(ServiceTest, RefusesWhatTheModelCannotDo) {
  Service service(card(), {});
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "a", "model": "other"})"), 404);
  EXPECT_EQ(reply->json()["error"]["code"], "model_not_found");
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": [257]})"), 400);
  EXPECT_EQ(message(), "prompt: expected token ids below 257, got 257");
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": ""})"), 400);
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "abc", "max_tokens": 30})"), 400);
  EXPECT_EQ(reply->json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "abc", "max_tokens": 29})"), 0);
  EXPECT_EQ(
      post(service, "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"),
      400);
  EXPECT_EQ(message(), "no template here");
  EXPECT_EQ(reply->json()["error"]["param"], "messages");
}

TEST_F(ServiceTest, WritesConversationsByTheTemplate) {
  ModelCard with_chat = card();
  with_chat.chat.emplace(
      io::ChatTemplate::parse(
          "{% for m in messages %}{{ m.role[0] }}{{ m.content }}"
          "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}a{% endif %}",
          "t", {{"eos_token", "<|endoftext|>"}}),
      with_chat.tokenizer);
  Service service(std::move(with_chat), {});
  EXPECT_EQ(
      post(service, "/v1/chat/completions",
           R"({"messages": [{"role": "user", "content": "x<|endoftext|>"}], "max_tokens": 3})"),
      0);
  Ids expected{117, 120};
  for (const char c : std::string("<|endoftext|>")) expected.push_back(c);  // the user's is text
  expected.push_back(256);                                                  // the template's
  expected.push_back(97);
  EXPECT_EQ(backend.jobs.at(0).sequences[0].prompt, expected);
}

TEST_F(ServiceTest, HasAQueueThatCanBeFullAndAnEnd) {
  Service service(card(), {});
  backend.full = true;
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "a"})"), 429);
  EXPECT_EQ(reply->headers, (Reply::Headers{{"Retry-After", "1"}}));
  EXPECT_EQ(service.open_jobs(), 0u);
  backend.full = false, backend.has_memory = false;
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "a"})"), 503);
  EXPECT_EQ(service.open_jobs(), 0u);
  backend.has_memory = true;
  EXPECT_EQ(get(service, "/health"), 200);
  service.drain();
  EXPECT_EQ(post(service, "/v1/completions", R"({"prompt": "a"})"), 503);
  EXPECT_EQ(service.open_jobs(), 0u) << "a server that stops waits for no job that it refuses";
  EXPECT_TRUE(backend.jobs.empty());
  EXPECT_EQ(post(service, "/attention", R"({"tokens": [104]})"), 503);
  EXPECT_EQ(get(service, "/health"), 503);
  EXPECT_EQ(get(service, "/metrics"), 200);
}

TEST_F(ServiceTest, AsksForTheKey) {
  Service service(card(), {.limits = {}, .api_key = "secret", .cors_origin = "", .page = ""});
  EXPECT_EQ(get(service, "/v1/models"), 401);
  for (const char* given :
       {"secret", "Bearer secre", "Bearer secrets", "Bearer ", "Bearer SECRET"}) {
    EXPECT_EQ(
        ask(service, {.method = "GET", .path = "/v1/models", .body = "", .authorization = given}),
        401)
        << given;
  }
  EXPECT_EQ(
      ask(service,
          {.method = "GET", .path = "/v1/models", .body = "", .authorization = "Bearer secret"}),
      200);
  EXPECT_EQ(get(service, "/health"), 200) << "for watchers";
}

TEST_F(ServiceTest, AnswersNoPagesOfOtherSites) {
  Service closed(card(), {});
  const HttpRequest foreign{.method = "POST",
                            .path = "/tokenize",
                            .body = R"({"prompt": "a"})",
                            .authorization = "",
                            .origin = "http://evil.example",
                            .host = "127.0.0.1:8000"};
  EXPECT_EQ(ask(closed, foreign), 403);
  HttpRequest own = foreign;
  own.origin = "http://127.0.0.1:8000";
  EXPECT_EQ(ask(closed, own), 200);
  HttpRequest rebound = foreign;  // a name that was made to point to this machine
  rebound.host = "evil.example";
  EXPECT_EQ(ask(closed, rebound), 403);
  for (const char* host : {"127.0.0.1:8000", "127.1.2.3", "localhost", "[::1]:8000", "[::1]", ""}) {
    EXPECT_EQ(ask(closed, {.method = "GET", .path = "/v1/models", .body = "", .host = host}), 200);
  }
  for (const char* host : {"evil.example:8000", "127.evil.example", "127.0.0.1.evil.example:8000",
                           "128.0.0.1", "[::2]", "[", "::", "127"}) {
    EXPECT_EQ(ask(closed, {.method = "GET", .path = "/v1/models", .body = "", .host = host}), 403);
  }
  ServiceOptions behind_a_proxy;
  behind_a_proxy.public_host = "ai.example";
  Service proxied(card(), behind_a_proxy);
  HttpRequest passed_on = foreign;
  passed_on.origin = "https://ai.example", passed_on.host = "ai.example";
  EXPECT_EQ(ask(proxied, passed_on), 200) << "the server's own page";
  passed_on.host = "ai.example:8443", passed_on.origin = "";
  EXPECT_EQ(ask(proxied, passed_on), 200);
  passed_on.origin = "https://evil.example";
  EXPECT_EQ(ask(proxied, passed_on), 403);
  EXPECT_EQ(ask(proxied, rebound), 403);
  Service open(card(), {.limits = {}, .api_key = "", .cors_origin = "*", .page = ""});
  EXPECT_EQ(ask(open, foreign), 200);
  EXPECT_EQ(reply->headers, (Reply::Headers{{"Access-Control-Allow-Origin", "*"}}));
  EXPECT_EQ(ask(open, {.method = "OPTIONS", .path = "/v1/completions", .body = ""}), 204);
}

TEST_F(ServiceTest, AnswersPagesOfOneOtherSite) {
  Service service(card(),
                  {.limits = {}, .api_key = "", .cors_origin = "https://a.example", .page = ""});
  const auto ask_from = [&](const char* origin, const char* method, const char* path) {
    return ask(service, {.method = method,
                         .path = path,
                         .body = "",
                         .authorization = "",
                         .origin = origin,
                         .host = "127.0.0.1:8000"});
  };
  for (const char* origin : {"https://a.example", "http://127.0.0.1:8000", ""}) {
    EXPECT_EQ(ask_from(origin, "GET", "/v1/models"), 200) << origin;
    EXPECT_EQ(reply->headers,
              (Reply::Headers{{"Access-Control-Allow-Origin", "https://a.example"}}));
    EXPECT_EQ(ask_from(origin, "OPTIONS", "/v1/completions"), 204) << origin;
  }
  for (const char* origin : {"https://b.example", "https://a.example.b", "http://a.example", "null",
                             "https://a.example:444"}) {
    EXPECT_EQ(ask_from(origin, "GET", "/v1/models"), 403) << origin;
    EXPECT_EQ(ask_from(origin, "OPTIONS", "/v1/completions"), 403) << origin;
  }
}

TEST_F(ServiceTest, ShowsWhereATokenLooks) {
  Service service(card(), {});
  EXPECT_EQ(post(service, "/attention", R"({"tokens": []})"), 400);
  EXPECT_EQ(post(service, "/attention", R"({"tokens": [257]})"), 400);
  std::string many = "{\"tokens\": [1";
  for (int i = 0; i < 32; ++i) many += ", 1";
  EXPECT_EQ(post(service, "/attention", many + "]}"), 400) << "longer than the context";
  post(service, "/attention", R"({"tokens": [104, 105]})");
  wait_for_the_end();
  EXPECT_EQ(reply->json()["tokens"], (Json{"h", "i"}));
  EXPECT_EQ(reply->json()["heads"][0]["difference"], (Json{0.75, 0.75}));
  EXPECT_EQ(reply->json()["heads"][0]["lambda"], 0.5);
  for (const int failures : {1, 2}) {  // no memory for the answer, nor for the error
    post(service, "/attention", R"({"tokens": [104]})", failures);
    wait_for_the_end();
    EXPECT_EQ(reply->abandoned, failures == 2);
    EXPECT_EQ(reply->status, failures == 1 ? 503 : 0);
  }
  backend.full = true;
  EXPECT_EQ(post(service, "/attention", R"({"tokens": [104]})"), 429);
}

TEST_F(ServiceTest, NeedsNoBodyOfRequestsThatItRefusesByTheirHead) {
  ServiceOptions options;
  options.api_key = "secret";
  const Service service(card(), options);
  const HttpRequest good{.method = "POST",
                         .path = "/v1/completions",
                         .authorization = "Bearer secret",
                         .origin = "",
                         .host = "localhost:8000"};
  EXPECT_TRUE(service.needs_body(good));
  HttpRequest bad = good;
  bad.authorization = "Bearer other";
  EXPECT_FALSE(service.needs_body(bad));
  bad = good, bad.authorization = "";
  EXPECT_FALSE(service.needs_body(bad));
  bad = good, bad.origin = "https://evil.example";
  EXPECT_FALSE(service.needs_body(bad));
  bad = good, bad.host = "evil.example";
  EXPECT_FALSE(service.needs_body(bad));
  bad = good, bad.method = "GET";
  EXPECT_FALSE(service.needs_body(bad));
}

TEST_F(ServiceTest, HasTheSmallEndpoints) {
  Service service(card(), {});
  EXPECT_EQ(get(service, "/v1/models"), 200);
  EXPECT_EQ(reply->json()["data"][0]["id"], "small");
  EXPECT_EQ(reply->json()["data"][0]["max_model_len"], 32);
  EXPECT_EQ(post(service, "/tokenize", R"({"prompt": "ab"})"), 200);
  EXPECT_EQ(reply->json()["tokens"], (Json{97, 98}));
  EXPECT_EQ(post(service, "/detokenize", R"({"tokens": [97, 256]})"), 200);
  EXPECT_EQ(reply->json()["prompt"], "a<|endoftext|>");
  std::string many = "{\"tokens\": [1";
  for (int i = 0; i < 32; ++i) many += ", 1";
  EXPECT_EQ(post(service, "/detokenize", many + "]}"), 400) << "longer than the context";
  EXPECT_EQ(get(service, "/nowhere"), 404);
  EXPECT_EQ(get(service, "/v1/completions"), 405);
  EXPECT_EQ(post(service, "/v1/models", ""), 405);
  EXPECT_EQ(get(service, "/metrics"), 200);
  EXPECT_NE(reply->text.find("path=\"other\",status=\"404\"} 1"), std::string::npos);
}

}  // namespace
}  // namespace diffattn::serve
