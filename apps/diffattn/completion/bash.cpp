// SPDX-License-Identifier: Apache-2.0
//
// The bash script keeps the verb path in a variable and looks up words in two case statements: the
// values of the option before the cursor, then the verbs and options of the path.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "apps/diffattn/completion/scripts.h"

namespace diffattn::app {
namespace {

std::string option_values(const CompletedVerb& tree) {
  std::string cases;
  for (const CompletedVerb* verb : all_verbs(tree)) {
    for (const CompletedOption& option : verb->options) {
      if (!option.takes_value) continue;
      const std::string action = !option.choices.empty()
                                     ? fmt::format("words=\"{}\"", fmt::join(option.choices, " "))
                                     : (option.takes_file ? "files=1" : "true");
      cases += fmt::format("    '{} {}') value=1; {} ;;\n", verb->path, option.name, action);
    }
  }
  return cases;
}

std::string verb_words(const CompletedVerb& tree) {
  std::string cases;
  for (const CompletedVerb* verb : all_verbs(tree)) {
    std::vector<std::string> words, options;
    for (const CompletedVerb& below : verb->verbs) {
      words.push_back(below.path.substr(below.path.rfind(' ') + 1));
    }
    words.insert(words.end(), verb->choices.begin(), verb->choices.end());
    for (const CompletedOption& option : verb->options) options.push_back(option.name);
    cases += fmt::format("    '{}') words=\"{}\"; options=\"{}\"{} ;;\n", verb->path,
                         fmt::join(words, " "), fmt::join(options, " "),
                         verb->takes_files ? "; files=1" : "");
  }
  return cases;
}

std::string path_words(const CompletedVerb& tree) {
  std::string patterns;
  for (const CompletedVerb* verb : all_verbs(tree)) {
    if (verb->path.empty()) continue;
    patterns += (patterns.empty() ? "'" : "|'") + verb->path + "'";
  }
  return patterns;
}

}  // namespace

std::string bash_completion(const CompletedVerb& tree) {
  return fmt::format(R"(# bash completion for diffattn
_diffattn() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local path="" next word words="" options="" value="" files=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    next="${{path:+$path }}$word"
    case "$next" in
      {}) path="$next" ;;
    esac
  done
  case "$path $before" in
{}  esac
  if [[ -z $value ]]; then
    case "$path" in
{}    esac
    [[ $current == -* ]] && words="$options" && files=""
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ -n $files ]] && compopt -o default 2> /dev/null
  return 0
}}
complete -F _diffattn diffattn
)",
                     path_words(tree), option_values(tree), verb_words(tree));
}

}  // namespace diffattn::app
