// SPDX-License-Identifier: Apache-2.0
//
// Filters: `value | name`.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/builtins.h"
#include "io/chat_template/strings.h"

namespace diffattn::io::chat {
namespace {

Value trim(const Value& value, const List& given, Run& run) {
  const std::string text = text_of(value, run);
  if (given[0].is_undefined() || given[0].is_none()) return run.text(stripped(text, kBoth));
  const std::string& characters = string_of(given[0], "characters for trim", run);
  run.step(text.size() / 64 * characters.size());
  return run.text(stripped(text, kBoth, characters));
}

template <std::string (*change)(std::string_view)>
Value with_change(const Value& value, const List&, Run& run) {
  return run.text(change(text_of(value, run)));
}

Value string(const Value& value, const List&, Run& run) { return run.text(text_of(value, run)); }

Value count(const Value& value, const List&, Run& run) { return Value(length_of(value, run)); }

Value join_items(const Value& value, const List& given, Run& run) {
  List items = items_of(value, run);
  if (!given[1].is_undefined()) {
    const std::string& path = string_of(given[1], "the name of an attribute", run);
    for (Value& item : items) item = member_at(item, path, run);
  }
  return joined_texts(items, text_of(given[0], run), run);
}

Value to_json(const Value& value, const List& given, Run& run) {
  constexpr int64_t kMostIndent = 64;
  JsonStyle style{.indent = -1, .ensure_ascii = given[0].truth()};
  if (!given[1].is_undefined() && !given[1].is_none()) {
    const int64_t indent = integer_of(given[1], "an integer for the indent of tojson", run);
    style.indent = std::clamp<int64_t>(indent, 0, kMostIndent);
  }
  return run.text(json_of(value, style, run));
}

Value or_default(const Value& value, const List& given, Run& run) {
  const bool missing = value.is_undefined() || (given[1].truth() && !value.truth());
  if (!missing) return value;
  return given[0].is_undefined() ? run.text("") : given[0];
}

Value to_list(const Value& value, const List&, Run& run) { return run.list(items_of(value, run)); }

template <bool front>
Value end_item(const Value& value, const List&, Run& run) {
  if (value.list() != nullptr || value.text() != nullptr) {
    return item(value, Value(int64_t{front ? 0 : -1}), run);
  }
  const List items = items_of(value, run);
  if (items.empty()) return Value();
  return front ? items.front() : items.back();
}

Value reversed(const Value& value, const List&, Run& run) {
  if (value.text() != nullptr) {
    return slice(value, {Value(), Value(), Value(int64_t{-1})}, run);
  }
  List items = items_of(value, run);
  std::reverse(items.begin(), items.end());
  return run.list(std::move(items));
}

Value replace_text(const Value& value, const List& given, Run& run) {
  const size_t most = given[2].is_undefined() || given[2].is_none()
                          ? std::numeric_limits<size_t>::max()
                          : static_cast<size_t>(integer_of(given[2], "a count for replace", run));
  return replaced(text_of(value, run), text_of(given[0], run), text_of(given[1], run), most, run);
}

Value to_int(const Value& value, const List& given, Run& run) {
  Value otherwise = given[0].is_undefined() ? Value(int64_t{0}) : given[0];
  const auto whole = [&](double real) {  // the comparison is false for NaN
    return std::fabs(real) < 9e18 ? Value(static_cast<int64_t>(real)) : otherwise;
  };
  if (value.real() != nullptr) return whole(*value.real());
  if (value.is_number()) return Value(integer_of(value, "a number", run));
  if (value.text() == nullptr) return otherwise;
  std::string_view text = stripped(*value.text(), kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  int64_t number = 0;
  if (const auto read = std::from_chars(text.data(), end, number);
      read.ec == std::errc() && read.ptr == end) {
    return Value(number);
  }
  double real = 0.0;
  const auto read = std::from_chars(text.data(), end, real);
  return read.ec == std::errc() && read.ptr == end ? whole(real) : otherwise;
}

Value members(const Value& value, const List&, Run& run) {
  if (value.is_undefined()) return run.list({});
  if (value.dict() == nullptr) run.expected("a mapping for items", value);
  return call_method("items", value, {}, run);
}

/// Returns the members ordered by their names, without regard to case.
Value sorted_members(const Value& value, const List&, Run& run) {
  if (value.dict() == nullptr) run.expected("a mapping for dictsort", value);
  std::vector<std::pair<std::string, Value>> order;
  for (const auto& [key, part] : *value.dict()) {
    order.emplace_back(lower(key), run.list({run.text(key), part}));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  List sorted;
  for (auto& [key, member] : order) sorted.push_back(std::move(member));
  return run.list(std::move(sorted));
}

Value same(const Value& value, const List&, Run&) { return value; }

/// Applies a filter or takes an attribute of every item. What is false has none.
Value map(const Value& value, const List& given, Run& run) {
  List items = value.truth() ? items_of(value, run) : List();
  Arguments more;
  if (!given[1].is_undefined()) more.values.push_back(given[1]);
  for (Value& item : items) {
    run.step();
    if (given[2].is_undefined()) {
      const std::string& name = string_of(given[0], "the name of a filter for map", run);
      if (name == "map") run.fail("expected a filter of single values for map, got 'map'");
      item = apply_filter(name, item, more, run);
    } else {
      item = member_at(item, string_of(given[2], "the name of an attribute", run), run);
      if (item.is_undefined()) item = given[3];
    }
  }
  return run.list(std::move(items));
}

/// Keeps the items, or those whose attribute given[0], for which a test holds, or does not hold.
template <bool by_attribute, bool keep>
Value select(const Value& value, const List& given, Run& run) {
  const Value& test = given[by_attribute ? 1 : 0];
  const Value& argument = given[by_attribute ? 2 : 1];
  Arguments more;
  if (!argument.is_undefined()) more.values.push_back(argument);
  List kept;
  for (const Value& item : value.truth() ? items_of(value, run) : List()) {
    run.step();
    const Value subject =
        by_attribute ? member_at(item, string_of(given[0], "the name of an attribute", run), run)
                     : item;
    const bool holds = test.is_undefined() ? subject.truth()
                                           : apply_test(string_of(test, "the name of a test", run),
                                                        subject, more, run);
    if (holds == keep) kept.push_back(item);
  }
  return run.list(std::move(kept));
}

struct Filter {
  std::string_view name;
  std::vector<std::string_view> parameters;
  Value (*apply)(const Value& value, const List& given, Run& run);
};

const std::vector<Filter>& filters() {
  static const std::vector<Filter> filters = {
      {"trim", {"chars"}, trim},
      {"upper", {}, with_change<upper>},
      {"lower", {}, with_change<lower>},
      {"capitalize", {}, with_change<capitalized>},
      {"string", {}, string},
      {"safe", {}, same},
      {"length", {}, count},
      {"count", {}, count},
      {"join", {"d", "attribute"}, join_items},
      {"tojson", {"ensure_ascii", "indent"}, to_json},
      {"default", {"default_value", "boolean"}, or_default},
      {"d", {"default_value", "boolean"}, or_default},
      {"list", {}, to_list},
      {"first", {}, end_item<true>},
      {"last", {}, end_item<false>},
      {"reverse", {}, reversed},
      {"replace", {"old", "new", "count"}, replace_text},
      {"int", {"default"}, to_int},
      {"items", {}, members},
      {"dictsort", {}, sorted_members},
      {"map", {"filter", "argument", "attribute", "default"}, map},
      {"select", {"test", "argument"}, select<false, true>},
      {"reject", {"test", "argument"}, select<false, false>},
      {"selectattr", {"attribute", "test", "argument"}, select<true, true>},
      {"rejectattr", {"attribute", "test", "argument"}, select<true, false>},
  };
  return filters;
}

}  // namespace

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                   Run& run) {
  const auto& all = filters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Filter& one) { return one.name == name; });
  if (found == all.end()) {
    run.fail("expected a filter such as trim, join or tojson, got " + in_quotes(name));
  }
  return found->apply(value, bound(arguments, found->parameters, name, run), run);
}

}  // namespace diffattn::io::chat
