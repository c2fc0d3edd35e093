// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>

#include "io/chat_template/evaluator.h"
#include "io/chat_template/parser.h"
#include "tests/io/test_files.h"

// Templates that would take all time, memory or stack.

namespace diffattn::io {
namespace {

using namespace testing;

std::string text_of_template(const std::string& text) {
  const std::string file = "t.jinja";
  const chat::Dict variables{{"x", chat::Value("text")}};
  const chat::Body body = chat::parse(text, file);
  return chat::Evaluator(file, variables).render(body);
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

void expect_refused(const std::string& text, const std::string& fragment) {
  const std::string error = error_of([&] { text_of_template(text); });
  EXPECT_TRUE(holds(error, "t.jinja: ") && holds(error, fragment)) << text.substr(0, 100) << "\n"
                                                                   << error;
}

TEST(ChatTemplateLimits, Size) {
  EXPECT_EQ(text_of_template(std::string(chat::kMaxTemplateBytes, 'a')).size(),
            chat::kMaxTemplateBytes);
  expect_refused(std::string(chat::kMaxTemplateBytes + 1, 'a'), "at most 262144 bytes");
}

TEST(ChatTemplateLimits, Nesting) {
  EXPECT_EQ(text_of_template("{{ " + repeated("(", 60) + "1" + repeated(")", 60) + " }}"), "1");
  EXPECT_EQ(text_of_template("{{ 0" + repeated(" + 1", 120) + " }}"), "120");
  const size_t many = 10'000;
  const std::pair<const char*, const char*> nested[] = {
      {"(", ")"},       {"[", "]"},   {"{'a': ", "}"}, {"x[", "]"}, {"x(", ")"},
      {"x|join(", ")"}, {"not ", ""}, {"- ", ""},      {"+", ""},   {"1 if ", ""}};
  for (const auto& [open, close] : nested) {
    expect_refused("{{ " + repeated(open, many) + "1" + repeated(close, many) + " }}", "deep");
  }
  for (const char* more : {" + 1", " ~ 1", " * 1", " and 1", " or 1", ".a", "[0]", "()", "|trim",
                           " is none", " if 1"}) {
    expect_refused("{{ 1" + repeated(more, many) + " }}", "deep");
  }
  expect_refused(repeated("{% if 1 %}", many), "deep");
  expect_refused(repeated("{% for a in x %}", many), "deep");
  EXPECT_EQ(text_of_template("{% if 0 %}" + repeated("{% elif 0 %}", many) + "{% endif %}"), "");
}

TEST(ChatTemplateLimits, Steps) {
  const std::string loop = "{% for a in range(100000) %}";
  expect_refused(loop + loop + "{% endfor %}{% endfor %}", "got more");
  expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "call each other less deeply");
  expect_refused(
      "{% macro m(k) %}{% if k %}{{ m(k - 1) }}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
      "steps");
  expect_refused("{{ range(100001) }}", "at most 100000 numbers");
  // A list that holds the one before twice has 2^60 items in all.
  const std::string twice = "{% set a = [1] %}" + repeated("{% set a = [a, a] %}", 60);
  expect_refused(twice + "{{ a }}", "steps");
  expect_refused(twice + "{{ a|tojson }}", "steps");
  expect_refused(
      twice + "{% set b = [1] %}" + repeated("{% set b = [b, b] %}", 60) + "{{ a == b }}", "steps");
}

TEST(ChatTemplateLimits, Memory) {
  expect_refused("{{ 'a' * 100000000 }}", "bytes");
  expect_refused("{{ [1] * 1000000000 }}", "bytes");
  expect_refused("{{ ('a' * 60000 * 60000) }}", "bytes");
  const std::string text = "{% set a = 'ab' %}" + repeated("{% set a = a ~ a %}", 40);
  expect_refused(text + "{{ a }}", "bytes");
  expect_refused("{% set a = 'ab' %}" + repeated("{% set a = a + a %}", 40), "bytes");
  expect_refused("{% set a = [1] %}" + repeated("{% set a = a + a %}", 40), "bytes");
  expect_refused("{% set a = 'aa' %}" + repeated("{% set a = a.replace('a', a) %}", 6), "bytes");
  expect_refused("{% set a = 'a' * 4000000 %}{{ a.split('a') }}", "bytes");
  expect_refused("{% set a = 'a' * 4000000 %}{{ a|list }}", "bytes");
  expect_refused("{% set a = ['a'] * 10000 %}{{ a|join('a' * 10000) }}", "bytes");
  expect_refused("{% set a = 'a' * 1000000 %}{% for i in range(1000) %}{{ a }}{% endfor %}",
                 "bytes");
  expect_refused(
      "{% set ns = namespace(a='') %}{% for i in range(100000) %}{% set ns.a = ns.a ~ "
      "'abcdefghijkl' %}"
      "{% endfor %}",
      "at most");
}

TEST(ChatTemplateLimits, ValuesNest) {
  const std::string deeper = "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}";
  expect_refused(deeper + "{% set ns.a = [ns.a] %}{% endfor %}", "lists at most 64 deep");
  expect_refused(deeper + "{% set ns.a = {'a': ns.a} %}{% endfor %}", "mappings at most 64 deep");
  // A namespace may hold itself.
  EXPECT_EQ(text_of_template("{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a == [ns] }}"
                             "{{ ns.a[0].a[0].a == ns.a }}"),
            "TrueTrue");
  expect_refused("{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a }}", "a namespace");
}

}  // namespace
}  // namespace diffattn::io
