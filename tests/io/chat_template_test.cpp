// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/chat_template/evaluator.h"
#include "io/chat_template/parser.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using namespace testing;
using nlohmann::ordered_json;

chat::Value value_of(const ordered_json& json) {
  using chat::Value;
  switch (json.type()) {
    case ordered_json::value_t::null: return Value(chat::None());
    case ordered_json::value_t::boolean: return Value(json.get<bool>());
    case ordered_json::value_t::number_float: return Value(json.get<double>());
    case ordered_json::value_t::string: return Value(json.get<std::string>());
    case ordered_json::value_t::array: {
      chat::List items;
      for (const auto& item : json) items.push_back(value_of(item));
      return Value(std::move(items));
    }
    case ordered_json::value_t::object: {
      chat::Dict members;
      for (const auto& [key, item] : json.items()) members.emplace_back(key, value_of(item));
      return Value(std::move(members));
    }
    default: return Value(json.get<int64_t>());
  }
}

std::string rendered(const std::string& text,
                     const ordered_json& variables = ordered_json::object()) {
  const chat::Value values = value_of(variables);
  const std::string file = "t.jinja";
  const chat::Body body = chat::parse(text, file);
  return chat::Evaluator(file, *values.dict()).render(body);
}

// cases.json has what Jinja2 makes of each template.
TEST(ChatTemplate, AsJinja) {
  const auto file =
      ordered_json::parse(slurp(std::string(DIFFATTN_TEST_DATA) + "/chat/cases.json"));
  size_t results = 0;
  for (const ordered_json& one : file["cases"]) {
    const std::string text = one["template"];
    size_t place = one["first_variables"];
    for (const ordered_json& expected : one["results"]) {
      const ordered_json& variables = file["variables"][place++];
      SCOPED_TRACE(text + "\n" + variables.dump());
      ++results;
      if (expected.contains("error")) {
        EXPECT_TRUE(holds(error_of([&] { rendered(text, variables); }), "t.jinja: line "));
        continue;
      }
      try {
        EXPECT_EQ(rendered(text, variables), expected["text"].get<std::string>());
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  EXPECT_GE(results, 450u);
}

TEST(ChatTemplate, ErrorsNameTheLineAndWhatWasExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\nb\n{{ x", "line 3: expected '}}' at the end of the tag, got the end of the template"},
      {"a\n{# b", "line 2: expected '#}' after '{#', got the end of the template"},
      {"{% if a %}\nb", "line 2: expected '{% endif %}', got the end of the template"},
      {"{% if a %}{% endfor %}", "got 'endfor'"},
      {"\n{% include 'x' %}",
       "line 2: expected if, for, set, macro, break, continue or generation, got 'include'"},
      {"{{ 1 2 }}", "line 1: expected '}}', got '2'"},
      {"{{ 1 + }}", "expected a value, got '}}'"},
      {"{{ 'a }}", "expected the end of a string"},
      {"{{ '\\xg0' }}", "expected a hexadecimal number"},
      {"{{ '\\ud800' }}", "expected a Unicode character"},
      {"{{ '\\0' }}", "expected an escape such as \\n or \\x00"},
      {"{{ (1] }}", "got ']'"},
      {"{{ ? }}", "expected an expression, got '?'"},
      {"{{ 99999999999999999999 }}", "expected an integer of 64 bits"},
      {"{{ 9223372036854775807 + 1 }}", "expected an integer of 64 bits, got a larger one"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "expected an integer of 64 bits"},
      {"{% for a b in c %}{% endfor %}", "expected 'in', got 'b'"},
      {"{% continue %}", "expected a loop around it"},
      {"{{ f(a=1, 2) }}", "expected a keyword argument, got '2'"},
      {"{{ 'a'|none }}", "expected a filter such as trim, join or tojson, got 'none'"},
      {"{{ 'a' is what }}", "expected a test such as defined, none or string, got 'what'"},
      {"{{ 'a'.what() }}", "expected a method of strings, got 'what'"},
      {"{{ 'a'|trim('a', 'b') }}", "expected at most 1 arguments of 'trim', got 2"},
      {"{{ 'a'|trim(what=1) }}", "expected a known argument of 'trim', got 'what'"},
      {"{{ a.b }}", "expected a value that has 'b', got an undefined value"},
      {"{{ what() }}", "expected a function 'what', got an undefined value"},
      {"{{ raise_exception }}", "expected a value that has a text, got a function"},
      {"{{ namespace() }}", "expected a value that has a text, got a namespace"},
      {"\n\n{{ raise_exception('Say\n\x1b') }}",
       "line 3: the template refuses these messages: 'Say\\x0a\\x1b'"},
      // Parts of Python that no published template needs.
      {"{{ {1: 2} }}", "expected a string as key of a mapping, got an integer"},
      {"{{ '%s' % 1 }}", "expected operands that fit together, got a string and an integer"},
      {"{{ 2 ** 3 }}", "expected '}}', got '**'"},
      {"{{ 'a'|replace('', 'b') }}", "expected a string to replace, got an empty one"},
      {"{{ '{a}'.format(a=1) }}", "expected format() without keyword arguments"},
      {"{{ '{:>3}'.format(1) }}", "expected a field of format() with an argument, got ':>3'"},
  };
  for (const auto& [text, fragment] : cases) {
    const std::string error = error_of([&] { rendered(text); });
    EXPECT_TRUE(holds(error, "t.jinja: line ")) << error;
    EXPECT_TRUE(holds(error, fragment)) << error;
  }
}

TEST(ChatTemplate, TextMayBeAnyBytes) {
  EXPECT_EQ(rendered("\xff{{ x }}{{ x|length }}{{ x[0]|length }}{{ x|tojson }}", {{"x", "a"}}),
            "\xff"
            "a11\"a\"");
  const chat::Dict variables{{"x", chat::Value("\xff\xc3")}};
  const std::string file = "t.jinja";
  const chat::Body body = chat::parse("{{ x }}{{ x|length }}{{ x|tojson }}{{ x|upper }}", file);
  EXPECT_EQ(chat::Evaluator(file, variables).render(body),
            "\xff\xc3"
            "2\"\xef\xbf\xbd\xef\xbf\xbd\"\xff\xc3");
}

// The time is the only thing that a template can see besides its variables.
TEST(ChatTemplate, Time) {
  const std::string year = rendered("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(std::stoi(year), 2026);
  EXPECT_TRUE(holds(error_of([] { rendered("{{ strftime_now('a' * 65) }}"); }), "64 bytes"));
}

TEST(ChatTemplate, RendersMessages) {
  const auto chat = ChatTemplate::parse(
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}{{ tools is none }}{{ eos_token is "
      "defined }}",
      "t.jinja", {{"bos_token", "<s>"}});
  EXPECT_EQ(chat.render({{"system", "Be brief."}, {"user", "Hi"}}, true),
            "<s><system>Be brief.<user>Hi<assistant>TrueFalse");
  EXPECT_EQ(chat.render({}, false), "<s>TrueFalse");
}

TEST(ChatTemplate, OfAFolder) {
  const TempFolder folder;
  EXPECT_FALSE(chat_template_in(folder.path()));
  folder.put("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  EXPECT_FALSE(chat_template_in(folder.path()));
  folder.put("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
    "pad_token": null, "chat_template": "{{ bos_token }}a{{ eos_token }}{{ pad_token }}"})");
  EXPECT_EQ(chat_template_in(folder.path())->render({}, false), "<s>a</s>");
  folder.put("tokenizer_config.json", R"({"chat_template": [
    {"name": "tool_use", "template": "{% bad"}, {"name": "default", "template": "b"}]})");
  EXPECT_EQ(chat_template_in(folder.path())->render({}, false), "b");
  const auto error = [&] { return error_of([&] { chat_template_in(folder.path()); }); };
  folder.put("tokenizer_config.json", R"({"chat_template": [{"name": "a", "template": "b"}]})");
  EXPECT_TRUE(holds(error(), "expected a template with the name 'default'")) << error();
  folder.put("tokenizer_config.json", R"({"chat_template": "\n{{ 1 +"})");
  EXPECT_TRUE(holds(error(), "tokenizer_config.json: key 'chat_template': line 2: ")) << error();
  folder.put("tokenizer_config.json", R"({"chat_template": 5, "eos_token": "</s>"})");
  EXPECT_TRUE(holds(error(), "key 'chat_template': expected a string")) << error();
  folder.put("chat_template.jinja", "c{{ eos_token }}\n");  // wins
  EXPECT_EQ(chat_template_in(folder.path())->render({}, false), "c</s>");
  folder.put("chat_template.jinja", std::string(chat::kMaxTemplateBytes + 1, 'a'));
  EXPECT_TRUE(holds(error(), "chat_template.jinja: ")) << error();
}

}  // namespace
}  // namespace diffattn::io
