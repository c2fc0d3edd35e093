// SPDX-License-Identifier: Apache-2.0
//
// The program: picks a verb, runs it and turns the result into an exit code.
//   0 done   1 failed   2 wrong use   3 loss not finite   4 out of memory

#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "apps/diffattn/terminal/help_format.h"
#include "apps/diffattn/verbs.h"
#include "diffattn/train/run_config.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

/// Returns the verbs that were parsed before an argument was wrong: " bench attention".
std::string chosen_verbs(const CLI::App& app) {
  std::string names;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    names += " " + at->get_name();
  }
  return names;
}

/// Returns the message of a parse error in the form of our own messages.
std::string parse_message(const CLI::ParseError& error) {
  std::string message = error.what();
  const std::string too_many = ": At Most 1 required but received ";  // CLI11's ArgumentMismatch
  if (const size_t at = message.find(too_many); at != std::string::npos) {
    return message.replace(at, too_many.size(), ": expected one value, got ");
  }
  if (const size_t at = message.find(": 1 required "); at != std::string::npos) {
    return message.substr(0, at) + ": expected a value, got none";
  }
  if (message[0] >= 'A' && message[0] <= 'Z') message[0] += 'a' - 'A';
  return message;
}

/// Parses the arguments. Returns an exit code if there is nothing to run: after --help, --version
/// and wrong use.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
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
    fmt::print(stderr, "diffattn: {}\nRun 'diffattn{} --help' for its options.\n",
               parse_message(error), chosen_verbs(app));
    return kWrongUse;
  }
  return std::nullopt;
}

int run_program(int argc, char** argv) {
  using namespace diffattn::app;
  CLI::App app("Differential Transformers: fused attention, models and tools.", "diffattn");
  // Verbs that are added later inherit the formatter and the help flag.
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_version_flag("--version", "diffattn " DIFFATTN_VERSION, "print the version and exit");
  app.footer("Example:\n  diffattn info\n\nHelp on a verb: diffattn VERB --help");
  app.require_subcommand(1);
  const std::vector<VerbAction> actions{add_info(app),     add_selftest(app),  add_bench(app),
                                        add_train(app),    add_eval(app),      add_generate(app),
                                        add_classify(app), add_summarize(app), add_compare(app),
                                        add_analyze(app),  add_convert(app),   add_tokenize(app)};
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
    if (printed_.insert(warning.msg()).second) fmt::print(stderr, "diffattn: {}\n", warning.msg());
  }

 private:
  std::set<std::string> printed_;
};

/// Prints an error. Messages of the operators start with "diffattn: " already.
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
  // ferror() reports earlier writes that failed: after them fflush() may have nothing left to
  // write.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout.flush()) {
    fmt::print(stderr, "diffattn: could not write to standard output\n");
    return kFailed;
  }
  return code;
}
