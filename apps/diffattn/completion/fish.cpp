// SPDX-License-Identifier: Apache-2.0
//
// The fish script has one `complete` command for every verb and option. A condition compares the
// verbs on the command line with the path of the option.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "apps/diffattn/completion/scripts.h"

namespace diffattn::app {
namespace {

/// Returns text in single quotes, as fish reads it.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string verb_lines(const CompletedVerb& verb) {
  const std::string start =
      fmt::format("complete -c diffattn -n {}", quoted("__diffattn_at " + quoted(verb.path)));
  std::string lines;
  for (const CompletedVerb& below : verb.verbs) {
    lines += fmt::format("{} -f -a {} -d {}\n", start,
                         quoted(below.path.substr(below.path.rfind(' ') + 1)), quoted(below.help));
  }
  if (!verb.choices.empty()) {
    lines += fmt::format("{} -f -a {}\n", start,
                         quoted(fmt::format("{}", fmt::join(verb.choices, " "))));
  }
  for (const CompletedOption& option : verb.options) {
    lines += fmt::format("{} -l {} -d {}", start, option.name.substr(2), quoted(option.help));
    if (option.takes_value) lines += option.takes_file ? " -r -F" : " -x";
    if (!option.choices.empty()) {
      lines += " -a " + quoted(fmt::format("{}", fmt::join(option.choices, " ")));
    }
    lines += '\n';
  }
  return lines;
}

}  // namespace

std::string fish_completion(const CompletedVerb& tree) {
  std::string paths, lines;
  for (const CompletedVerb* verb : all_verbs(tree)) {
    if (!verb->path.empty()) paths += " " + quoted(verb->path);
    lines += verb_lines(*verb);
  }
  return fmt::format(R"(# fish completion for diffattn
function __diffattn_at --description 'True if the words on the command line lead to this verb'
    set -l path
    for word in (commandline -opc)[2..-1]
        set -l next (string trim -- "$path $word")
        contains -- $next{} && set path $next
    end
    test "$path" = "$argv[1]"
end
{})",
                     paths, lines);
}

}  // namespace diffattn::app
