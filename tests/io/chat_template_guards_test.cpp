// SPDX-License-Identifier: Apache-2.0
//
// Refusals, boundaries and results of chat templates whose loss no other test notices. Mutation
// testing (tools/mutation) found them; the results are those of Jinja2.

#include <utility>

#include "io/chat_template/evaluator.h"
#include "io/chat_template/parser.h"
#include "tests/io/test_files.h"

namespace diffattn::io::chat_guards_test {
namespace {

using testing::error_of;
using testing::holds;

std::string rendered(const std::string& text) {
  const std::string file = "t.jinja";
  const chat::Body body = chat::parse(text, file);
  return chat::Evaluator(file, {}).render(body);
}

void expect_rendered(const std::string& text, const std::string& expected) {
  try {
    EXPECT_EQ(rendered(text), expected) << text;
  } catch (const Error& error) {
    ADD_FAILURE() << text << "\n" << error.what();
  }
}

void expect_refused(const std::string& text, const std::string& fragment) {
  const std::string error = error_of([&] { rendered(text); });
  EXPECT_TRUE(holds(error, fragment)) << text.substr(0, 100) << "\n" << error;
}

std::string nested_lists(int more) {
  return "{% set ns = namespace(a=[]) %}{% for i in range(" + std::to_string(more) +
         ") %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}";
}

TEST(ChatTemplateGuards, ItemsAndSlices) {
  expect_rendered("{{ 'abcd'[none:2] }}{{ [1, 2, 3][1:none]|join(',') }}{{ 'abcd'[::none] }}",
                  "ab2,3abcd");
  expect_rendered("{{ [1, 2][true] }}{{ 'ab'[false] }}{{ [1, 2][1.5] is defined }}", "2aFalse");
  expect_refused("{{ [1, 2][::0] }}", "expected a step of a slice, got 0");
  expect_refused("{{ 'ab'[::0] }}", "expected a step of a slice, got 0");
}

TEST(ChatTemplateGuards, OnlyTheNameLoopIsTheLoop) {
  expect_rendered(
      "{% for a in 'ab' %}{{ loop['index'] }}{{ loop['last'] }}{% set l = loop %}{{ l.index0 }}"
      "{% endfor %}",
      "1False02True1");
  expect_rendered(
      "{% for a in [{'loop': {'index': 'x'}}] %}{{ a.loop.index }}{{ a['loop'].index }}"
      "{{ loop.index }}{% endfor %}",
      "xx1");
}

TEST(ChatTemplateGuards, OperandsThatDoNotFit) {
  expect_refused("{{ [1] + 'a' }}", "operands that fit together, got a list and a string");
  expect_refused("{{ 'a' + [1] }}", "operands that fit together, got a string and a list");
  expect_refused("{{ [1] + 1 }}", "operands that fit together, got a list and an integer");
  expect_refused("{{ {} * 2 }}", "operands that fit together, got a mapping and an integer");
  expect_refused("{{ 'a' * 1.5 }}", "operands that fit together, got a string and a float");
  expect_refused("{{ namespace([1]) }}", "expected a mapping for namespace(), got a list");
  expect_rendered("{{ namespace({'a': 1}, b=2).a }}", "1");
}

TEST(ChatTemplateGuards, ComparisonsOfMixedKinds) {
  expect_rendered("{{ 1 < 1.5 }}{{ 1.5 < 1 }}{{ 1 >= 0.5 }}{{ true < 1.5 }}", "TrueFalseTrueTrue");
  expect_rendered("{{ 1.5 == 1 }}{{ 1.0 == 1 }}{{ 1 == 1.5 }}{{ true == 1.0 }}",
                  "FalseTrueFalseTrue");
  expect_rendered("{{ {'a': 1} == {'b': 1} }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}",
                  "FalseTrue");
  expect_rendered(
      "{{ none == none }}{{ none == 0 }}{{ none != none }}{{ none in [none] }}{{ u == none }}"
      "{{ u == v }}",
      "TrueFalseFalseTrueFalseTrue");
}

TEST(ChatTemplateGuards, SequencesAndIterables) {
  expect_rendered(
      "{{ 'a' is sequence }}{{ [] is sequence }}{{ {} is sequence }}"
      "{{ u is sequence }}{{ 1 is sequence }}",
      "TrueTrueTrueTrueFalse");
  expect_rendered(
      "{{ 'a' is iterable }}{{ [] is iterable }}{{ {} is iterable }}"
      "{{ u is iterable }}{{ 1 is iterable }}{{ none is iterable }}",
      "TrueTrueTrueTrueFalseFalse");
}

TEST(ChatTemplateGuards, SeparatorsOfSplit) {
  expect_rendered("{{ 'ab'.rsplit('ab') }}{{ 'ab'.split('ab') }}{{ 'ab'.rsplit('abc') }}",
                  "['', '']['', '']['ab']");
  expect_refused("{{ 'a'.split('') }}", "a separator for split(), got an empty string");
  expect_refused("{{ 'a'.rsplit('') }}", "a separator for rsplit(), got an empty string");
}

TEST(ChatTemplateGuards, EscapesInStrings) {
  expect_rendered("{{ '\\ue000' }}{{ '\\ud7ff' }}", "\xee\x80\x80\xed\x9f\xbf");
  expect_refused("{{ '\\udfff' }}", "expected a Unicode character");
  expect_rendered("{{ ['\\x01\\x1f\\x7f\\n'] }}", "['\\x01\\x1f\\x7f\\n']");
}

TEST(ChatTemplateGuards, NamesAreNamesAndNoStrings) {
  expect_refused("{{ a.'b' }}", "expected the name of an attribute, got the string 'b'");
  expect_refused("{{ 'a'|'trim' }}", "expected the name of a filter, got the string 'trim'");
  expect_refused("{{ dict(1=2) }}", "expected ',', got '='");
}

TEST(ChatTemplateGuards, Depths) {
  expect_rendered(nested_lists(63), std::string(64, '[') + std::string(64, ']'));
  expect_refused(nested_lists(64), "lists at most 64 deep");
  // A part that is not evaluated is refused, too.
  std::string sum = "1";
  for (int i = 0; i < 200; ++i) sum += " + 1";
  expect_refused("{% if 0 %}{{ " + sum + " }}{% endif %}", "at most 128 operations deep");
}

}  // namespace
}  // namespace diffattn::io::chat_guards_test
