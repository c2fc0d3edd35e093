// SPDX-License-Identifier: Apache-2.0
//
// The program: picks a verb, runs it, turns what happened into an exit code.
//   0 done   1 failed   2 wrong use   3 loss not finite   4 out of memory

#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <exception>
#include <iostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "diffattn/train/run_config.h"
#include "apps/diffattn/verbs.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// " bench attention": what the arguments named before one of them was wrong.
std::string chosen_verbs(const CLI::App& app) {
  std::string names;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    names += " " + at->get_name();
  }
  return names;
}

int run_program(int argc, char** argv) {
  CLI::App app("Differential Transformers: fused attention, models and tools.", "diffattn");
  app.set_version_flag("--version", "diffattn " DIFFATTN_VERSION);
  app.footer("Example:\n  diffattn info\n\nHelp on a verb: diffattn <verb> --help");
  app.require_subcommand(1);

  const std::vector<diffattn::app::Run> runs{
      diffattn::app::add_info(app),     diffattn::app::add_selftest(app),
      diffattn::app::add_bench(app),    diffattn::app::add_train(app),
      diffattn::app::add_eval(app),     diffattn::app::add_generate(app),
      diffattn::app::add_classify(app), diffattn::app::add_summarize(app),
      diffattn::app::add_compare(app),  diffattn::app::add_analyze(app),
      diffattn::app::add_convert(app),  diffattn::app::add_tokenize(app)};
  if (argc < 2) {
    fmt::print(stderr, "{}", app.help());
    return kWrongUse;
  }
  const std::string first = argv[1];
  try {
    if (app.get_option_no_throw(first) == nullptr) std::ignore = app.get_subcommand(first);
  } catch (const CLI::OptionNotFound&) {
    fmt::print(stderr, "diffattn: expected a verb, got '{}'\nRun 'diffattn --help' for the list.\n",
               first);
    return kWrongUse;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::string message = error.what();
    if (message[0] >= 'A' && message[0] <= 'Z') message[0] += 'a' - 'A';
    fmt::print(stderr, "diffattn: {}\nRun 'diffattn{} --help' for its options.\n", message,
               chosen_verbs(app));
    return kWrongUse;
  }
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  for (size_t i = 0; i < verbs.size(); ++i) {
    if (verbs[i]->parsed()) return runs[i]();
  }
  return kWrongUse;
}

/// Warnings of torch and of the library as lines of the program, each once.
class WarningLines : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (said_.insert(warning.msg()).second) fmt::print(stderr, "diffattn: {}\n", warning.msg());
  }

 private:
  std::set<std::string> said_;
};

/// Messages of the operators name the library themselves.
void print_error(const std::string& message) {
  const bool named = message.starts_with("diffattn: ");
  fmt::print(stderr, "{}{}\n", named ? "" : "diffattn: ", message);
}

}  // namespace

int main(int argc, char** argv) {
  c10::WarningUtils::set_warning_handler(new WarningLines);  // torch may warn until the very end
  int code = kFailed;
  try {
    code = run_program(argc, argv);
  } catch (const c10::Error& error) {
    print_error(error.what_without_backtrace());
  } catch (const diffattn::train::ConfigError& error) {
    print_error(error.what());
    code = kWrongUse;
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  // A flush that failed before has left nothing for this one to fail with.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout.flush()) {
    fmt::print(stderr, "diffattn: could not write to standard output\n");
    return kFailed;
  }
  return code;
}
