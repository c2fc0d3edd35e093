// SPDX-License-Identifier: Apache-2.0
//
// The program: picks a verb, runs it and turns the result into an exit code.
//   0 done   1 failed   2 wrong use   3 loss not finite   4 out of memory

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "apps/diffattn/machine/less_memory.h"
#include "apps/diffattn/machine/out_of_memory.h"
#include "apps/diffattn/options/parse_errors.h"
#include "apps/diffattn/terminal/help_format.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;
constexpr int kOutOfMemory = 4;

/// Parses the arguments. Returns an exit code if there is nothing to run: after --help, --version
/// and wrong use.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
  if (argc < 2) {
    print_note("{}", app.help());
    return kWrongUse;
  }
  const std::string first = argv[1];
  try {
    if (app.get_option_no_throw(first) == nullptr) std::ignore = app.get_subcommand(first);
  } catch (const CLI::OptionNotFound&) {
    print_note("diffattn: {}\nRun 'diffattn --help' for the list.\n",
               unknown_verb_message(app, first));
    return kWrongUse;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    print_note("diffattn: {}\nRun 'diffattn{} --help' for its options.\n",
               parse_message(app, error), parsed_verbs(app));
    return kWrongUse;
  }
  return std::nullopt;
}

int run_program(int argc, char** argv) {
  CLI::App app("Differential Transformers: fused attention, models and tools.", "diffattn");
  // Verbs that are added later inherit the formatter and the help flag.
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_version_flag("--version", kVersionText, "print the version and exit");
  app.footer("Example:\n  diffattn info\n\nHelp on a verb: diffattn VERB --help");
  app.require_subcommand(1);
  const std::vector<VerbAction> actions{
      add_info(app),      add_selftest(app), add_bench(app),   add_train(app),
      add_eval(app),      add_generate(app), add_serve(app),   add_classify(app),
      add_summarize(app), add_compare(app),  add_analyze(app), add_convert(app),
      add_tokenize(app),  add_help(app),     add_version(app), add_completion(app)};
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  for (CLI::App* verb : verbs) verb->group("Verbs");
  if (const auto code = parse_arguments(app, argc, argv)) return *code;
  for (size_t i = 0; i < verbs.size(); ++i) {
    if (verbs[i]->parsed()) return actions[i]();
  }
  return kWrongUse;
}

/// Prints each warning of torch and of the library once, as a line of the program.
class WarningLines : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (printed_.insert(warning.msg()).second) print_note("diffattn: {}\n", warning.msg());
  }

 private:
  std::set<std::string> printed_;
};

/// Prints an error. Messages of the operators start with "diffattn: " already.
void print_error(const std::string& message) {
  print_note("{}{}\n", message.starts_with("diffattn: ") ? "" : "diffattn: ", message);
}

/// Prints an exception and returns its exit code.
int report_failure(const std::exception& error, const std::string& verb) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const bool no_memory = is_out_of_memory(error);
  if (of_torch != nullptr) {
    print_error(of_torch->what_without_backtrace());
  } else {
    print_error(dynamic_cast<const std::bad_alloc*>(&error) ? "out of memory" : error.what());
  }
  if (no_memory) print_note("diffattn: {}\n", less_memory(verb));
  if (no_memory) return kOutOfMemory;
  return dynamic_cast<const train::ConfigError*>(&error) != nullptr ? kWrongUse : kFailed;
}

/// Runs the program and turns exceptions into messages and exit codes.
int run_guarded(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const std::exception& error) {
    return report_failure(error, argc > 1 ? argv[1] : "");
  }
}

}  // namespace
}  // namespace diffattn::app

int main(int argc, char** argv) {
  using namespace diffattn::app;
  c10::WarningUtils::set_warning_handler(new WarningLines);  // torch may warn until the very end
  const int code = run_guarded(argc, argv);
  // ferror() reports earlier writes that failed: after them fflush() may have nothing left to
  // write.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout.flush()) {
    print_note("diffattn: could not write to standard output\n");
    return kFailed;
  }
  return code;
}
