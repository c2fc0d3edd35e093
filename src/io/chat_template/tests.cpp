// SPDX-License-Identifier: Apache-2.0
//
// Tests: `value is name`.

#include <algorithm>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/builtins.h"
#include "io/chat_template/operators.h"

namespace diffattn::io::chat {
namespace {

struct Test {
  std::string_view name;
  bool (*holds)(const Value& value);
};

constexpr Test kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.text() != nullptr; }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"iterable",
     [](const Value& v) {
       return v.is_undefined() || v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr;
     }},
    {"sequence",
     [](const Value& v) {
       return v.is_undefined() || v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr;
     }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"integer", [](const Value& v) { return v.integer() != nullptr; }},
    {"float", [](const Value& v) { return v.real() != nullptr; }},
    {"boolean", [](const Value& v) { return v.boolean() != nullptr; }},
    {"true", [](const Value& v) { return v.boolean() != nullptr && *v.boolean(); }},
    {"false", [](const Value& v) { return v.boolean() != nullptr && !*v.boolean(); }},
    {"callable", [](const Value& v) { return v.is_callable(); }},
};

struct Comparison {
  std::string_view name;
  Operator operation;
};

constexpr Comparison kComparisons[] = {
    {"equalto", Operator::kEqual},   {"eq", Operator::kEqual},     {"ne", Operator::kUnequal},
    {"lt", Operator::kLess},         {"le", Operator::kLessEqual}, {"gt", Operator::kGreater},
    {"ge", Operator::kGreaterEqual}, {"in", Operator::kIn},
};

}  // namespace

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments, Run& run) {
  const auto named = [&](const auto& one) { return one.name == name; };
  if (const auto* test = std::find_if(std::begin(kTests), std::end(kTests), named);
      test != std::end(kTests)) {
    bound(arguments, {}, name, run);
    return test->holds(value);
  }
  if (const auto* test = std::find_if(std::begin(kComparisons), std::end(kComparisons), named);
      test != std::end(kComparisons)) {
    if (arguments.values.size() != 1) run.fail("expected one argument of " + in_quotes(name));
    return compare(test->operation, value, arguments.values[0], run);
  }
  if (name == "odd" || name == "even") {
    bound(arguments, {}, name, run);
    return (integer_of(value, "an integer", run) % 2 != 0) == (name == "odd");
  }
  run.fail("expected a test such as defined, none or string, got " + in_quotes(name));
}

}  // namespace diffattn::io::chat
