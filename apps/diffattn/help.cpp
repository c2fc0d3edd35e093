// SPDX-License-Identifier: Apache-2.0
//
// diffattn help and diffattn version: the options --help and --version as verbs.

#include <memory>
#include <vector>

#include "apps/diffattn/options/parse_errors.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {
namespace {

int run_help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* verb = &app;
  for (const std::string& word : words) {
    const CLI::App* below = nullptr;
    for (const CLI::App* each : verb->get_subcommands([](const CLI::App*) { return true; })) {
      if (each->check_name(word)) below = each;
    }
    if (below == nullptr) throw train::ConfigError("help: " + unknown_verb_message(*verb, word));
    verb = below;
  }
  std::string path = verb->get_name();
  for (const CLI::App* at = verb->get_parent(); at != nullptr; at = at->get_parent()) {
    path = at->get_name() + " " + path;
  }
  // CLI::App::help() would print the help of the verb that was parsed, which is `help`.
  print_out("{}", app.get_formatter()->make_help(verb, path, CLI::AppFormatMode::Normal));
  return 0;
}

}  // namespace

VerbAction add_help(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* verb = app.add_subcommand("help", "Print the help of the program or of a verb");
  verb->add_option("verb", *words, "verb to explain: train, or bench step");
  verb->footer("Example:\n  diffattn help train");
  return [&app, words] { return run_help(app, *words); };
}

VerbAction add_version(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("version", "Print the version");
  verb->footer("Example:\n  diffattn version");
  return [] {
    print_out("{}\n", kVersionText);
    return 0;
  };
}

}  // namespace diffattn::app
