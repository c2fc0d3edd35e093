// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/diffattn/completion/command_tree.h"

namespace diffattn::app {

// Each function returns a script that completes verbs, options and their values in one shell.
std::string bash_completion(const CompletedVerb& tree);
std::string zsh_completion(const CompletedVerb& tree);
std::string fish_completion(const CompletedVerb& tree);

}  // namespace diffattn::app
