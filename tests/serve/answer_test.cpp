// SPDX-License-Identifier: Apache-2.0
#include "serve/answer.h"

#include <gtest/gtest.h>

#include <thread>

#include "serve/responder.h"
#include "tests/serve/recorded_reply.h"

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

/// Gives an answer the bytes of a text as tokens of the byte tokenizer.
struct AnswerTest : testing::Test {
  std::shared_ptr<RecordedReply> reply = std::make_shared<RecordedReply>();
  Metrics metrics;
  std::vector<size_t> stopped;

  Answer make(AnswerPlan plan) {
    plan.model = "m", plan.id = "cmpl-1";
    if (plan.prompts.empty()) plan.prompts = {{104, 105}};
    return {std::move(plan), io::Tokenizer::bytes(), reply, metrics,
            [this](size_t choice) { stopped.push_back(choice); }};
  }
  static bool feed(Answer& answer, const std::string& text, std::optional<End> end = End::kLength,
                   size_t choice = 0) {
    bool done = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto id = static_cast<int64_t>(static_cast<unsigned char>(text[i]));
      Event event{.job = 1, .sequence = choice};
      event.token = Token{id, -0.5f, {{id, -0.5f}, {65, -2.0f}}};
      if (end && i + 1 == text.size()) event.end = end;
      done = answer.take(event);
    }
    return done;
  }
  std::string streamed() const {
    std::string text;
    for (const Json& event : reply->events()) text += event["choices"][0].value("text", "");
    return text;
  }
};

TEST_F(AnswerTest, IsOneObject) {
  Answer answer = make({});
  EXPECT_FALSE(feed(answer, "ab", std::nullopt));
  EXPECT_EQ(reply->status, 0);
  EXPECT_TRUE(feed(answer, "c"));
  const Json json = reply->json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], "abc");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(json["usage"],
            (Json{{"prompt_tokens", 2}, {"completion_tokens", 3}, {"total_tokens", 5}}));
}

TEST_F(AnswerTest, StopsBeforeAStopStringThatSeveralTokensSpell) {
  AnswerPlan plan;
  plan.request.stop = {"END", "zz"};
  Answer answer = make(plan);
  feed(answer, "abENENDxyz", std::nullopt);
  EXPECT_EQ(reply->json()["choices"][0]["text"], "abEN");
  EXPECT_EQ(reply->json()["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped, std::vector<size_t>{0});
}

TEST_F(AnswerTest, GivesTheBeginningOfAStopStringThatNeverCame) {
  AnswerPlan plan;
  plan.request.stop = {"END"};
  plan.request.stream = true;
  Answer answer = make(plan);
  EXPECT_TRUE(feed(answer, "abEN"));
  EXPECT_EQ(streamed(), "abEN");
  EXPECT_TRUE(stopped.empty());
}

TEST_F(AnswerTest, StreamsWholeCharacters) {
  AnswerPlan plan;
  plan.request.stream = plan.request.include_usage = true;
  Answer answer = make(plan);
  EXPECT_TRUE(feed(answer, "x\xe2\x82\xac\xf0\x9f\x98\x80"));  // a euro sign and a face
  const auto events = reply->events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1]["choices"][0]["text"], "\xe2\x82\xac");
  EXPECT_EQ(events[2]["choices"][0]["text"], "\xf0\x9f\x98\x80");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(events[3]["choices"].empty());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 8);
  EXPECT_TRUE(reply->text.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(reply->type, "text/event-stream");
  EXPECT_TRUE(reply->ended);
}

TEST_F(AnswerTest, AnUnfinishedCharacterBecomesAReplacement) {
  Answer answer = make({});
  feed(answer, "x\xe2\x82");
  EXPECT_EQ(reply->json()["choices"][0]["text"], "x\xef\xbf\xbd");
}

TEST_F(AnswerTest, ChatHasMessagesAndDeltas) {
  AnswerPlan plan{.chat = true};
  Answer whole = make(plan);
  feed(whole, "hi", End::kStopToken);  // the last token ends it and is not shown
  Json json = reply->json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "h");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
  reply = std::make_shared<RecordedReply>();
  plan.request.stream = true;
  Answer stream = make(plan);
  feed(stream, "hi");
  const auto events = reply->events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", "h"}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], (Json{{"content", "i"}}));
}

TEST_F(AnswerTest, HasLogProbabilities) {
  AnswerPlan plan;
  plan.request.logprobs = 2;
  Answer answer = make(plan);
  feed(answer, "a\xff");
  const Json logprobs = reply->json()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"a", "bytes:\\xff"}));
  EXPECT_EQ(logprobs["token_logprobs"], (Json{-0.5, -0.5}));
  EXPECT_EQ(logprobs["top_logprobs"][0], (Json{{"a", -0.5}, {"A", -2.0}}));
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  reply = std::make_shared<RecordedReply>();
  plan.chat = true, plan.request.logprobs = 1;
  Answer chat = make(plan);
  feed(chat, "a");
  const Json entry = reply->json()["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "a");
  EXPECT_EQ(entry["bytes"], Json{97});
  EXPECT_EQ(entry["top_logprobs"].size(), 1u);
}

TEST_F(AnswerTest, EchoesThePromptWithItsLogProbabilities) {
  AnswerPlan plan{.echo = true};
  plan.prompt_texts = {"hi"};
  plan.request.logprobs = 1;
  Answer answer = make(plan);
  Event event{.job = 1, .sequence = 0};
  event.prompt = {Token{104, {}, {}}, Token{105, -1.0f, {{106, -0.25f}}}};
  EXPECT_FALSE(answer.take(event));
  EXPECT_TRUE(feed(answer, "!"));
  const Json choice = reply->json()["choices"][0];
  EXPECT_EQ(choice["text"], "hi!");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"h", "i", "!"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{nullptr, -1.0, -0.5}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], (Json{{"j", -0.25}, {"i", -1.0}}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2}));
}

TEST_F(AnswerTest, ChoicesEndOneByOne) {
  AnswerPlan plan;
  plan.request.n = 2;
  plan.request.return_token_ids = true;
  Answer answer = make(plan);
  EXPECT_FALSE(feed(answer, "ab", End::kLength, 1));
  EXPECT_TRUE(feed(answer, "c", End::kStopToken, 0));
  const Json json = reply->json();
  EXPECT_EQ(json["choices"][0]["text"], "");
  EXPECT_EQ(json["choices"][1]["text"], "ab");
  EXPECT_EQ(json["choices"][1]["token_ids"], (Json{97, 98}));
}

TEST_F(AnswerTest, FailsWithAStatusOrWithAnEvent) {
  Answer answer = make({});
  EXPECT_TRUE(answer.take({.job = 1, .sequence = 0, .end = End::kTimeout}));
  EXPECT_EQ(reply->status, 504);
  EXPECT_EQ(reply->json()["error"]["code"], "timeout");
  reply = std::make_shared<RecordedReply>();
  AnswerPlan plan;
  plan.request.stream = true;
  Answer stream = make(plan);
  feed(stream, "a", std::nullopt);
  EXPECT_TRUE(stream.take({.job = 1, .sequence = 0, .end = End::kFailed, .message = "no memory"}));
  EXPECT_EQ(reply->events().back()["error"]["message"], "no memory");
  EXPECT_EQ(reply->text.find("[DONE]"), std::string::npos);
}

TEST_F(AnswerTest, AFailureStopsTheOtherChoices) {
  AnswerPlan plan;
  plan.request.n = 4;
  Answer answer = make(plan);
  EXPECT_FALSE(feed(answer, "ab", End::kLength, 1));
  EXPECT_FALSE(feed(answer, "c", std::nullopt, 3));
  EXPECT_TRUE(answer.take({.job = 1, .sequence = 2, .end = End::kNotFinite}));
  EXPECT_EQ(reply->status, 500);
  EXPECT_EQ(stopped, (std::vector<size_t>{0, 2, 3})) << "choice 1 had ended";
  EXPECT_TRUE(feed(answer, "d", std::nullopt, 0)) << "what was under way is dropped";
  EXPECT_EQ(stopped.size(), 3u);
}

/// Gives the last token of an answer to a responder whose reply fails some times.
std::shared_ptr<FailingReply> answered(bool stream, int failures) {
  auto reply = std::make_shared<FailingReply>();
  reply->failures = failures;
  Metrics metrics;
  Responder responder;
  AnswerPlan plan{.prompts = {{104}}};
  plan.request.stream = stream;
  responder.add(
      1, std::make_shared<Answer>(plan, io::Tokenizer::bytes(), reply, metrics, [](size_t) {}));
  Event event{.job = 1, .sequence = 0, .token = Token{.id = 104}, .end = End::kLength};
  std::vector<Event> events{event};
  responder.push(std::move(events));
  for (int i = 0; i < 12000 && responder.open() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(responder.open(), 0u);
  return reply;
}

TEST(Responder, AnswersOrHangsUpAfterAFailureAtTheEnd) {
  for (const bool stream : {false, true}) {
    const auto whole = answered(stream, 0);
    EXPECT_TRUE(whole->ended && whole->status == 200 && !whole->abandoned);
    const auto error = answered(stream, 1);
    EXPECT_TRUE(error->ended && !error->abandoned);
    EXPECT_EQ(error->status, stream ? 200 : 500);
    const Json last = stream ? error->events().back() : error->json();
    EXPECT_EQ(last["error"]["type"], "server_error");
    EXPECT_EQ(error->text.find("[DONE]"), std::string::npos);
    const auto nothing = answered(stream, 2);
    EXPECT_TRUE(nothing->abandoned && !nothing->ended);
  }
}

}  // namespace
}  // namespace diffattn::serve
