// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ctime>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/builtins.h"

namespace diffattn::io::chat {
namespace {

constexpr int64_t kMaxRange = 100'000;
constexpr size_t kMostMessageBytes = 256;

/// Ends the rendering with a message of the template's author.
Value raise_exception(const Arguments& arguments, Run& run) {
  const List given = bound(arguments, {"message"}, "raise_exception", run);
  run.fail("the template refuses these messages: " +
           in_quotes(text_of(given[0], run), '\'', kMostMessageBytes));
}

Value make_namespace(const Arguments& arguments, Run& run) {
  const List given = bound({arguments.values, {}}, {"members"}, "namespace", run);
  Namespace members;
  if (!given[0].is_undefined()) {
    if (given[0].dict() == nullptr) run.expected("a mapping for namespace()", given[0]);
    for (const auto& [name, value] : *given[0].dict()) members.insert_or_assign(name, value);
  }
  for (const auto& [name, value] : arguments.named) members.insert_or_assign(name, value);
  return run.space(std::move(members));
}

Value make_dict(const Arguments& arguments, Run& run) {
  if (!arguments.values.empty()) run.fail("expected keyword arguments of dict(), got others");
  return run.dict(arguments.named);
}

Value make_range(const Arguments& arguments, Run& run) {
  const List given = bound(arguments, {"first", "end", "step"}, "range", run);
  const bool one = given[1].is_undefined();
  const int64_t first = one ? 0 : integer_of(given[0], "an integer for range()", run);
  const int64_t end = integer_of(given[one ? 0 : 1], "an integer for range()", run);
  const int64_t step =
      given[2].is_undefined() ? 1 : integer_of(given[2], "an integer for range()", run);
  if (step == 0) run.fail("expected a step for range(), got 0");
  List numbers;
  for (int64_t at = first; step > 0 ? at < end : at > end;) {
    if (std::ssize(numbers) == kMaxRange) {
      run.fail("expected a range() of at most " + std::to_string(kMaxRange) + " numbers, got more");
    }
    numbers.push_back(Value(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return run.list(std::move(numbers));
}

/// Writes the local time.
Value strftime_now(const Arguments& arguments, Run& run) {
  const List given = bound(arguments, {"format"}, "strftime_now", run);
  const std::string& format = string_of(given[0], "a format for strftime_now()", run);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[256];
  if (format.size() > 64 || ::localtime_r(&now, &local) == nullptr) {
    run.fail("expected a format of at most 64 bytes for strftime_now()");
  }
  return run.text({text, std::strftime(text, sizeof text, format.c_str(), &local)});
}

constexpr Function kFunctions[] = {{"raise_exception", raise_exception},
                                   {"namespace", make_namespace},
                                   {"dict", make_dict},
                                   {"range", make_range},
                                   {"strftime_now", strftime_now}};

}  // namespace

List bound(const Arguments& arguments, const std::vector<std::string_view>& parameters,
           std::string_view what, Run& run) {
  if (arguments.values.size() > parameters.size()) {
    run.fail("expected at most " + std::to_string(parameters.size()) + " arguments of " +
             in_quotes(what) + ", got " + std::to_string(arguments.values.size()));
  }
  List values = arguments.values;
  values.resize(parameters.size());
  for (const auto& [name, value] : arguments.named) {
    run.step(1 + parameters.size() / 8);
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      run.fail("expected a known argument of " + in_quotes(what) + ", got " + in_quotes(name));
    }
    values[static_cast<size_t>(found - parameters.begin())] = value;
  }
  return values;
}

const Function* find_function(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                         [&](const Function& one) { return one.name == name; });
  return found == std::end(kFunctions) ? nullptr : found;
}

}  // namespace diffattn::io::chat
