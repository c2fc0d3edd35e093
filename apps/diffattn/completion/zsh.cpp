// SPDX-License-Identifier: Apache-2.0
//
// The zsh script describes each verb with _arguments, and the verbs of a path with _describe.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/diffattn/completion/scripts.h"

namespace diffattn::app {
namespace {

/// Returns "_diffattn_bench_step" for the path "bench step".
std::string function_name(const std::string& path) {
  std::string name = path.empty() ? "_diffattn" : "_diffattn_" + path;
  std::ranges::replace(name, ' ', '_');
  return name;
}

/// Returns text for the inside of a specification in single quotes, in which zsh gives brackets,
/// colons and backslashes a meaning.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string option_line(const CompletedOption& option) {
  std::string line = fmt::format("    '*{}[{}]", option.name, escaped(option.help));
  if (option.takes_value) {
    line += ":value:";
    if (!option.choices.empty()) line += fmt::format("({})", fmt::join(option.choices, " "));
    if (option.takes_file) line += "_files";
  }
  return line + "' \\\n";
}

std::string verb_function(const CompletedVerb& verb) {
  std::string body = fmt::format("{}() {{\n", function_name(verb.path));
  if (!verb.verbs.empty()) body += "  local state line\n  typeset -A opt_args\n";
  body += "  _arguments -s -C \\\n";
  for (const CompletedOption& option : verb.options) body += option_line(option);
  if (verb.verbs.empty()) {
    const std::string values = !verb.choices.empty()
                                   ? fmt::format("({})", fmt::join(verb.choices, " "))
                                   : (verb.takes_files ? "_files" : "");
    return body + fmt::format("    '*:argument:{}'\n}}\n\n", values);
  }
  body += "    '1:verb:->verb' '*::argument:->rest'\n  case $state in\n    verb)\n";
  body += "      local -a verbs=(\n";
  std::string calls;
  for (const CompletedVerb& below : verb.verbs) {
    const std::string name = below.path.substr(below.path.rfind(' ') + 1);
    body += fmt::format("        '{}:{}'\n", name, escaped(below.help));
    calls += fmt::format("        {}) {} ;;\n", name, function_name(below.path));
  }
  return body + fmt::format(
                    "      )\n      _describe verb verbs ;;\n    rest)\n"
                    "      case $line[1] in\n{}      esac ;;\n  esac\n}}\n\n",
                    calls);
}

}  // namespace

std::string zsh_completion(const CompletedVerb& tree) {
  std::string script = "#compdef diffattn\n# zsh completion for diffattn\n\n";
  for (const CompletedVerb* verb : all_verbs(tree)) script += verb_function(*verb);
  // zsh may load the script as the function itself, from a folder in $fpath, or source it.
  return script +
         "if [ \"$funcstack[1]\" = _diffattn ]; then\n  _diffattn \"$@\"\nelse\n"
         "  compdef _diffattn diffattn\nfi\n";
}

}  // namespace diffattn::app
