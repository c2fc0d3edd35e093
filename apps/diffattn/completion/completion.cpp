// SPDX-License-Identifier: Apache-2.0
//
// diffattn completion: prints a script with which a shell completes verbs, options and values.

#include <memory>

#include "apps/diffattn/completion/scripts.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {

VerbAction add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Print a completion script for a shell");
  verb->add_option("shell", *shell, "shell to print the script for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->footer(
      "bash:  eval \"$(diffattn completion bash)\"   in ~/.bashrc\n"
      "zsh:   eval \"$(diffattn completion zsh)\"    in ~/.zshrc, after compinit\n"
      "fish:  diffattn completion fish | source     in ~/.config/fish/config.fish\n\n"
      "Example:\n  diffattn completion bash > completions/diffattn");
  return [&app, shell] {
    const CompletedVerb tree = command_tree(app);
    print_out("{}", *shell == "bash"  ? bash_completion(tree)
                    : *shell == "zsh" ? zsh_completion(tree)
                                      : fish_completion(tree));
    return 0;
  };
}

}  // namespace diffattn::app
