// SPDX-License-Identifier: Apache-2.0
#include "io/chat_prompt.h"

#include <gtest/gtest.h>

#include "diffattn/io/error.h"

namespace diffattn::io {
namespace {

constexpr char kEnd[] = "<|endoftext|>";  // id 256 of the byte tokenizer; other ids are bytes

using Ids = std::vector<TokenId>;

ChatPrompts prompts(const std::string& text) {
  return {ChatTemplate::parse(text, "t", {{"eos_token", kEnd}}), Tokenizer::bytes()};
}

Ids bytes(const std::string& text) {
  return Tokenizer::bytes().encode(text, {.special_from_text = false});
}

Ids joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(ChatPrompt, OnlyTheTemplateWritesSpecialTokens) {
  const auto chat =
      prompts("{% for m in messages %}{{ m.content | trim }}{{ eos_token }}{% endfor %}>");
  for (const std::string said :
       {"hello", kEnd, "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endo<|endoftext|>",
        "x\xf0\x9f\x98\x80", "\xef\xb7\x90 noncharacter"}) {
    const ChatPrompts::Prompt prompt = chat.prompt({{"user", said}});
    EXPECT_EQ(prompt.ids, joined({bytes(said), {256}, bytes(">")})) << said;
    EXPECT_EQ(prompt.text, said + kEnd + ">");
  }
  EXPECT_EQ(chat.prompt({{"user", "  a  "}}).ids, joined({bytes("a"), {256}, bytes(">")}));
  EXPECT_EQ(chat.prompt({{"user", " "}}).ids, joined({{256}, bytes(">")}));
  EXPECT_THROW(prompts("{# nothing #}").prompt({{"user", "a"}}), Error);
}

TEST(ChatPrompt, AMessageCannotCompleteATokenOfTheTemplate) {
  const auto chat = prompts("{% for m in messages %}<|{{ m.content }}|>{% endfor %}");
  EXPECT_EQ(chat.prompt({{"user", "endoftext"}}).ids, bytes(kEnd));
  const auto halves = prompts("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(halves.prompt({{"user", "<|endof"}, {"user", "text|>"}}).ids, bytes(kEnd));
}

TEST(ChatPrompt, TemplatesMayCutMessages) {
  const auto chat =
      prompts("{% for m in messages %}{{ m.content.split('|')[0] }}{{ eos_token }}{% endfor %}");
  const Ids ids = chat.prompt({{"user", "a<|endoftext|>"}, {"user", "b"}}).ids;
  EXPECT_EQ(ids.back(), 256u);
  EXPECT_EQ((Ids{ids.begin(), ids.begin() + 2}), bytes("a<"));
}

TEST(ChatPrompt, KnowsTheTokensThatEndAReply) {
  const std::string text =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}";
  EXPECT_EQ(prompts(text).ends(), Ids{256});
  EXPECT_EQ(
      ChatPrompts(ChatTemplate::parse("{{ messages[0].content }}", "t"), Tokenizer::bytes()).ends(),
      Ids{});
}

TEST(ChatPrompt, PassesTheRefusalsOfATemplate) {
  const auto chat = prompts(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% "
      "endif %}{% endfor %}");
  EXPECT_THROW(chat.prompt({{"system", "a"}}), Error);
}

TEST(Untrusted, RangesKeepSpecialTokensText) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  const std::string text = std::string(kEnd) + kEnd + kEnd;
  const auto ids = [&](std::vector<EncodeOptions::Range> ranges) {
    return tokenizer.encode(text, {.untrusted = ranges});
  };
  EXPECT_EQ(ids({}), (Ids{256, 256, 256}));
  EXPECT_EQ(ids({{13, 14}}), joined({{256}, bytes(kEnd), {256}}));
  EXPECT_EQ(ids({{12, 13}}), joined({bytes(kEnd), {256, 256}}));
  EXPECT_EQ(ids({{0, 1}, {30, 39}}), joined({bytes(kEnd), {256}, bytes(kEnd)}));
  EXPECT_EQ(ids({{13, 13}}), (Ids{256, 256, 256})) << "an empty range";
}

}  // namespace
}  // namespace diffattn::io
