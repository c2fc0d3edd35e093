// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/option_checks.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <functional>

namespace diffattn::app {
namespace {

/// Parses the whole text as a number. Returns false if other characters surround it or if it is out
/// of range.
template <typename Number>
bool parse(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc{} && stop == end;
}

/// Returns a check that prints `shown` in --help and `expected` in its message.
template <typename Number>
CLI::Validator checked(const std::string& shown, const std::string& expected,
                       const std::function<bool(Number)>& fits) {
  const auto check = [=](const std::string& text) {
    Number value{};
    if (parse(text, value) && fits(value)) return std::string();
    return fmt::format("expected {}, got '{}'", expected, text);
  };
  return CLI::Validator(check, shown);
}

}  // namespace

CLI::Validator integer_in(int64_t low, int64_t high) {
  // Large upper limits only catch typing errors: the message has them, --help does not.
  constexpr int64_t kTypingError = int64_t{1} << 16;
  const std::string range = fmt::format("[{}, {}]", low, high);
  const std::string shown = high < kTypingError ? range : low > 1 ? fmt::format(">= {}", low) : "";
  return checked<int64_t>(shown, "an integer in " + range,
                          [=](int64_t value) { return value >= low && value <= high; });
}

CLI::Validator integer_from(int64_t low) {
  return checked<int64_t>(fmt::format(">= {}", low), fmt::format("an integer of at least {}", low),
                          [=](int64_t value) { return value >= low; });
}

CLI::Validator number_in(double low, double high) {
  const std::string range = fmt::format("[{:g}, {:g}]", low, high);
  return checked<double>(range, "a number in " + range,
                         [=](double value) { return value >= low && value <= high; });
}

CLI::Validator any_seed() {
  return checked<uint64_t>("", "an integer in [0, 2^64)", [](uint64_t) { return true; });
}

CLI::Validator share() {
  return checked<double>("(0, 1]", "a number in (0, 1]",
                         [](double value) { return value > 0.0 && value <= 1.0; });
}

CLI::Validator not_negative() {
  return checked<double>(">= 0", "a finite number of at least 0",
                         [](double value) { return std::isfinite(value) && value >= 0.0; });
}

CLI::Validator positive() {
  return checked<double>("> 0", "a finite number above 0",
                         [](double value) { return std::isfinite(value) && value > 0.0; });
}

void check_one_of(const CLI::App& verb, const std::vector<std::string>& options, bool required) {
  std::vector<std::string> given;
  for (const std::string& option : options) {
    if (verb.get_option(option)->count() > 0) given.push_back(option);
  }
  if (given.size() == 1 || (given.empty() && !required)) return;
  throw CLI::RequiredError(
      fmt::format("{}: expected {} of {}, got {}", verb.get_name(),
                  required ? "exactly one" : "at most one", fmt::join(options, ", "),
                  given.empty() ? "none" : fmt::format("{}", fmt::join(given, " and "))),
      CLI::ExitCodes::RequiredError);
}

}  // namespace diffattn::app
