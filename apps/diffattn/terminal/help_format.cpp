// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/help_format.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "apps/diffattn/terminal/terminal.h"

namespace diffattn::app {
namespace {

constexpr size_t kDescriptionColumn = 26;
constexpr int64_t kFewestColumns = 60, kMostColumns = 100, kUsualColumns = 80;

/// Returns "  left   right", with `right` wrapped in its column. A long `left` gets its own line.
std::string help_entry(const std::string& left, const std::string& right) {
  const auto width = static_cast<size_t>(std::clamp(
      terminal_columns(STDOUT_FILENO).value_or(kUsualColumns), kFewestColumns, kMostColumns));
  std::string out, line = "  " + left;
  const auto end_line = [&] {
    out += line + "\n";
    line.clear();
  };
  if (line.size() + 2 > kDescriptionColumn) end_line();
  line.resize(kDescriptionColumn, ' ');
  std::istringstream words(right);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > width) {
      end_line();
      line.resize(kDescriptionColumn, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  end_line();
  return out;
}

/// Returns the values that an option takes: "one of a, b" for CLI11's "{a,b}", else the range.
std::string values_text(const std::string& constraint) {
  if (!constraint.starts_with('{')) {
    const bool range = constraint.starts_with('[') || constraint.starts_with('(');
    return (range ? "in " : "") + constraint;
  }
  std::string text = "one of ";
  for (const char c : constraint.substr(1, constraint.size() - 2)) {
    text += c;
    if (c == ',') text += ' ';
  }
  return text;
}

std::string sorted_names(const std::set<CLI::Option*>& options) {
  std::set<std::string> names;
  for (const CLI::Option* option : options) names.insert(option->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

HelpFormatter::HelpFormatter() {
  label("OPTIONS", "options");
  label("Positionals", "Arguments");
  label("SUBCOMMAND", "VERB");
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  // CLI11 writes the type and the check as "INT:[1, 1024]".
  const std::string type = option->get_type_name();
  const size_t colon = std::min(type.find(':'), type.size());
  const bool list = option->get_expected_max() == CLI::detail::expected_max_vector_size;
  const bool commas = option->get_delimiter() != '\0';
  std::string left = option->get_name(is_positional, !is_positional);
  if (option->get_type_size() != 0) left += " " + type.substr(0, colon) + (commas ? ",..." : "");
  std::vector<std::string> parts{option->get_description()};
  if (colon < type.size()) parts.push_back(values_text(type.substr(colon + 1)));
  if (list && !commas) parts.emplace_back("repeatable");
  if (option->get_required()) parts.emplace_back("required");
  if (!option->get_needs().empty()) parts.push_back("needs " + sorted_names(option->get_needs()));
  if (!option->get_excludes().empty()) {
    parts.push_back("not with " + sorted_names(option->get_excludes()));
  }
  return help_entry(left, fmt::format("{}", fmt::join(parts, "; ")));
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  return help_entry(verb->get_name(), verb->get_description());
}

}  // namespace diffattn::app
