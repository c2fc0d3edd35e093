// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/parse_errors.h"

#include <fmt/core.h>

#include <vector>

#include "apps/diffattn/options/nearest.h"

namespace diffattn::app {
namespace {

/// Returns the innermost verb that was parsed, or `app`.
const CLI::App& parsed_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Returns the message for the first option that `verb` does not have, or an empty string.
std::string unknown_option_message(const CLI::App& verb) {
  for (const std::string& word : verb.remaining()) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("no such option: {}{}", name, nearest_hint(name, option_names(verb)));
  }
  return "";
}

}  // namespace

std::string parsed_verbs(const CLI::App& app) {
  std::string names;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    names += " " + at->get_name();
  }
  return names;
}

std::string unknown_verb_message(const CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) {
    return fmt::format("no such option: {}{}", word, nearest_hint(word, option_names(app)));
  }
  return fmt::format("expected a verb, got '{}'{}", word, nearest_hint(word, verb_names(app)));
}

std::string parse_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = parsed_verb(app);
  std::string path = parsed_verbs(app);
  path = path.empty() ? "" : path.substr(1) + ": ";
  // A verb with verbs below it, bench, reports wrong words itself.
  if (verb_names(verb).empty()) {
    if (const std::string unknown = unknown_option_message(verb); !unknown.empty()) {
      return path + unknown;
    }
  }
  const auto words = verb.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !words.empty()) {
    return fmt::format("{}expected no more arguments, got '{}'", path, words.front());
  }
  std::string message = error.what();
  const std::string too_many = ": At Most 1 required but received ";  // CLI11's ArgumentMismatch
  if (const size_t at = message.find(too_many); at != std::string::npos) {
    return message.replace(at, too_many.size(), ": expected one value, got ");
  }
  if (const size_t at = message.find(": 1 required "); at != std::string::npos) {
    return message.substr(0, at) + ": expected a value, got none";
  }
  if (message[0] >= 'A' && message[0] <= 'Z') message[0] += 'a' - 'A';
  return message;
}

}  // namespace diffattn::app
