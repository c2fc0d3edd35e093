// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/completion/command_tree.h"

#include <algorithm>
#include <sstream>

namespace diffattn::app {
namespace {

/// Returns a, b of CLI11's "TEXT:{a,b}", or nothing for other types.
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find(":{"), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return choices;
  std::istringstream names(type.substr(open + 2, close - open - 2));
  for (std::string name; std::getline(names, name, ',');) choices.push_back(name);
  return choices;
}

CompletedOption completed(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  CompletedOption out;
  out.name = "--" + option.get_lnames().front();
  out.help = option.get_description();
  out.takes_value = option.get_items_expected_max() > 0;
  out.choices = choices_of(type);
  out.takes_file = out.takes_value && out.choices.empty() && type.starts_with("TEXT");
  return out;
}

CompletedVerb read_verb(const CLI::App& app, const std::string& path) {
  CompletedVerb out;
  out.path = path;
  out.help = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty()) {
      out.options.push_back(completed(*option));
    } else if (option->get_positional()) {
      out.choices = choices_of(option->get_type_name());
      out.takes_files = out.choices.empty();
    }
  }
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.verbs.push_back(
        read_verb(*verb, path.empty() ? verb->get_name() : path + " " + verb->get_name()));
  }
  return out;
}

}  // namespace

CompletedVerb command_tree(const CLI::App& app) { return read_verb(app, ""); }

std::vector<const CompletedVerb*> all_verbs(const CompletedVerb& tree) {
  std::vector<const CompletedVerb*> all{&tree};
  for (const CompletedVerb& verb : tree.verbs) {
    const auto below = all_verbs(verb);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

}  // namespace diffattn::app
