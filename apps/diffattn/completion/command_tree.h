// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace diffattn::app {

/// An option as a completion script needs it.
struct CompletedOption {
  std::string name;                  // "--model"
  std::string help;                  // one line
  bool takes_value = false;          // false: a flag
  bool takes_file = false;           // the value is any text, so a file name may be meant
  std::vector<std::string> choices;  // values, if only these are allowed
};

/// A verb with the words that may follow it.
struct CompletedVerb {
  std::string path;  // words that lead to it: "", "train", "bench step"
  std::string help;
  std::vector<CompletedVerb> verbs;
  std::vector<CompletedOption> options;
  bool takes_files = false;          // it has arguments without a name
  std::vector<std::string> choices;  // values of these arguments, if only these are allowed
};

/// Reads the verbs and options of a CLI11 program.
CompletedVerb command_tree(const CLI::App& app);

/// Returns `tree` and all verbs below it, parents first.
std::vector<const CompletedVerb*> all_verbs(const CompletedVerb& tree);

}  // namespace diffattn::app
