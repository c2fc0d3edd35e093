// SPDX-License-Identifier: Apache-2.0
#include "serve/api/requests.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace diffattn::serve {
namespace {

using Json = nlohmann::json;

/// Returns "<param>: <message>" of the error that a body gives; empty if it gives none.
template <class Parse>
std::string refusal(const Parse& parse, const std::string& body) {
  try {
    parse(parse_body(body), Limits());
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const Json object = Json::parse(error.json());
    EXPECT_EQ(object["error"]["type"], "invalid_request_error");
    return error.param() + " | " + error.what();
  }
  return "";
}

std::string completion_refusal(const std::string& body) { return refusal(parse_completion, body); }
std::string chat_refusal(const std::string& body) { return refusal(parse_chat, body); }

TEST(Requests, ReadEveryFieldOfACompletion) {
  const auto request = parse_completion(
      parse_body(R"({"prompt": ["a", [1, 2]], "model": "m", "max_tokens": 5, "n": 3, "echo": true,
        "temperature": 0, "top_p": 0.5, "top_k": 4, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "seed": -7, "stop": ["x", "yz"], "ignore_eos": true,
        "logprobs": 2, "stream": true, "stream_options": {"include_usage": true},
        "return_token_ids": true, "user": "u", "suffix": null, "best_of": 3})"),
      Limits());
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "a");
  EXPECT_EQ(std::get<Ids>(request.prompts.at(1)), (Ids{1, 2}));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(request.echo && request.ignore_eos && request.stream && request.include_usage &&
              request.return_token_ids);
  EXPECT_EQ(request.temperature, 0.0);
  EXPECT_EQ(request.top_p, 0.5);
  EXPECT_EQ(request.top_k, 4);
  EXPECT_EQ(request.presence_penalty, 1.0);
  EXPECT_EQ(request.frequency_penalty, -1.0);
  EXPECT_EQ(request.repetition_penalty, 1.5);
  EXPECT_EQ(request.seed, -7);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(request.logprobs, 2);
}

TEST(Requests, HaveTheDefaultsOfTheApi) {
  const auto request = parse_completion(parse_body(R"({"prompt": "a", "stop": null})"), Limits());
  EXPECT_EQ(request.temperature, 1.0);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.max_tokens || request.seed || request.logprobs || request.stream);
  EXPECT_TRUE(request.stop.empty());
}

TEST(Requests, NameTheFieldThatIsWrong) {
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "temperature": 3})"),
            "temperature | temperature: expected a number from 0.0 to 2.0, got 3");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "max_tokens": "x"})"),
            "max_tokens | max_tokens: expected an integer from 0 to 16777216, got \"x\"");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "max_tokens": 1.5})").substr(0, 12),
            "max_tokens |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "max_tokens": 0})").substr(0, 12),
            "max_tokens |");
  EXPECT_EQ(
      completion_refusal(R"({"prompt": "a", "max_tokens": 18446744073709551615})").substr(0, 12),
      "max_tokens |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "n": 65})").substr(0, 3), "n |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "stream": 1})"),
            "stream | stream: expected true or false, got 1");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "stop": [""]})").substr(0, 6), "stop |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "logprobs": true})").substr(0, 10), "logprobs |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "stream_options": {}})").substr(0, 16),
            "stream_options |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "stream": true, "stream_options": {"x": 1}})")
                .substr(0, 18),
            "stream_options.x |");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "temprature": 1})"),
            "temprature | Unrecognized request argument supplied: 'temprature'");
  EXPECT_EQ(completion_refusal(R"({"prompt": "a", "logit_bias": {"5": 1}})"),
            "logit_bias | logit_bias is not supported by this server");
  for (const char* prompt : {"{}", "[]", "5", "[[-1]]", "[1, \"a\"]", "[\"a\", 1]", "[[1.5]]",
                             "[2147483648]", "[true]"}) {
    const std::string text = completion_refusal(std::string("{\"prompt\": ") + prompt + "}");
    EXPECT_EQ(text.substr(0, 6), "prompt") << prompt << ": " << text;
  }
  EXPECT_EQ(completion_refusal("{}").substr(0, 8), "prompt |");
}

/// Returns a JSON list of `count` times the same value.
std::string list_of(size_t count, const std::string& value) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "[" : ", ") + value;
  return list + "]";
}

/// A field of a request, and values at and just beyond both ends of its range.
struct Range {
  std::string field;
  std::vector<std::string> taken, refused;
};

void expect_range(const Range& range, const std::string& other_fields,
                  std::string (*refusal_of)(const std::string& body)) {
  const auto body = [&](const std::string& value) {
    return "{" + other_fields + "\"" + range.field + "\": " + value + "}";
  };
  for (const std::string& value : range.taken) {
    EXPECT_EQ(refusal_of(body(value)), "") << range.field << ": " << value.substr(0, 40);
  }
  for (const std::string& value : range.refused) {
    EXPECT_TRUE(refusal_of(body(value)).starts_with(range.field))
        << range.field << ": " << value.substr(0, 40) << ": " << refusal_of(body(value));
  }
}

TEST(Requests, HaveFieldsWithRanges) {
  const auto text = [](size_t bytes) { return "\"" + std::string(bytes, 'x') + "\""; };
  const std::vector<Range> of_both{
      {"max_tokens", {"1", "16777216"}, {"-1", "0", "16777217"}},
      {"n", {"1", "64"}, {"0", "65"}},
      {"temperature", {"0", "2"}, {"-0.001", "2.001"}},
      {"top_p", {"0", "1"}, {"-0.001", "1.001"}},
      {"top_k", {"-1", "16777216"}, {"-2", "16777217"}},
      {"presence_penalty", {"-2", "2"}, {"-2.001", "2.001"}},
      {"frequency_penalty", {"-2", "2"}, {"-2.001", "2.001"}},
      {"repetition_penalty", {"0.01", "100"}, {"0.009", "100.1"}},
      {"seed",
       {"-9223372036854775808", "9223372036854775807"},
       {"9223372036854775808", "18446744073709551615", "0.5"}},
      {"stop",
       {"[]", text(1), text(256), list_of(16, text(256))},
       {text(0), text(257), list_of(17, text(1)), list_of(2, text(257)), "[[]]"}},
      {"model", {text(0), text(4096)}, {text(4097)}}};
  for (const Range& range : of_both) {
    expect_range(range, "\"prompt\": \"a\", ", completion_refusal);
    expect_range(range, "\"messages\": [{\"role\": \"user\"}], ", chat_refusal);
  }
  expect_range({"max_tokens", {"0"}, {"-1"}}, R"("prompt": "a", "echo": true, )",
               completion_refusal);
  expect_range({"logprobs", {"0", "20"}, {"-1", "21"}}, R"("prompt": "a", )", completion_refusal);
  expect_range({"prompt",
                {text(0), list_of(256, text(1)), list_of(256, "[1]"), "[0, 2147483647]"},
                {"[]", list_of(257, text(1)), list_of(257, "[1]"), "[-1]", "[2147483648]"}},
               "", completion_refusal);
  expect_range({"n", {"2"}, {"3"}}, "\"prompt\": " + list_of(128, text(1)) + ", ",
               completion_refusal);
  expect_range({"n", {"1"}, {"2"}}, "\"prompt\": " + list_of(129, text(1)) + ", ",
               completion_refusal);
  const std::string message = R"({"role": "user", "content": "a"})";
  expect_range(
      {"messages", {list_of(1, message), list_of(1024, message)}, {"[]", list_of(1025, message)}},
      "", chat_refusal);
  const std::string messages = "\"messages\": " + list_of(1, message) + ", ";
  expect_range({"top_logprobs", {"0", "20"}, {"-1", "21"}}, messages + "\"logprobs\": true, ",
               chat_refusal);
  expect_range({"max_completion_tokens", {"1", "16777216"}, {"0", "16777217"}}, messages,
               chat_refusal);
}

TEST(Requests, RefuseBodiesThatAreNoObjects) {
  for (const char* body : {"", "{", "[]", "7", "{\"prompt\": \"a\"} x", "{\"n\": 1, \"n\": 2}",
                           "{\"prompt\": \"\xff\"}"}) {
    EXPECT_NE(completion_refusal(body), "") << body;
  }
  EXPECT_NE(completion_refusal("{\"prompt\": " + std::string(40, '[') + std::string(40, ']') + "}"),
            "");
}

TEST(Requests, ReadMessages) {
  const auto request = parse_chat(parse_body(R"({"messages": [{"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "name": "x"}],
        "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3})"),
                                  Limits());
  ASSERT_EQ(request.messages.size(), 3u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[2].content, "");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.logprobs, 3);
}

TEST(Requests, NameTheMessageThatIsWrong) {
  EXPECT_EQ(chat_refusal(R"({"messages": [{"role": "user"}, {"role": "tool"}]})"),
            "messages[1].role | messages[1].role: expected system, developer, user or assistant, "
            "got \"tool\"");
  EXPECT_EQ(chat_refusal(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})")
                .substr(0, 21),
            "messages[0].content |");
  EXPECT_EQ(chat_refusal(R"({"messages": [5]})").substr(0, 13), "messages[0] |");
  EXPECT_EQ(chat_refusal(R"({"messages": []})").substr(0, 10), "messages |");
  EXPECT_EQ(chat_refusal(R"({})").substr(0, 10), "messages |");
  EXPECT_EQ(chat_refusal(R"({"messages": [{"role": "user"}], "tools": [{}]})").substr(0, 7),
            "tools |");
  EXPECT_EQ(chat_refusal(R"({"messages": [{"role": "user"}], "top_logprobs": 2})").substr(0, 14),
            "top_logprobs |");
  EXPECT_EQ(chat_refusal(R"({"messages": [{"role": "user"}], "tools": [], "n": 1})"), "");
}

TEST(Requests, OfTheTokenizer) {
  EXPECT_EQ(parse_tokenize(parse_body(R"({"prompt": "a"})")).text, "a");
  EXPECT_FALSE(parse_tokenize(parse_body(R"({"content": "a", "add_special_tokens": false})"))
                   .add_special_tokens);
  EXPECT_THROW(parse_tokenize(parse_body("{}")), ApiError);
  EXPECT_EQ(parse_detokenize(parse_body(R"({"tokens": [3, 4]})")), (Ids{3, 4}));
  EXPECT_THROW(parse_detokenize(parse_body(R"({"tokens": [-3]})")), ApiError);
}

}  // namespace
}  // namespace diffattn::serve
