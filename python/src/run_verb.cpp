// SPDX-License-Identifier: Apache-2.0
#include "python/src/run_verb.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>
#include <utility>

#include "apps/diffattn/machine/less_memory.h"
#include "apps/diffattn/options/parse_errors.h"
#include "apps/diffattn/terminal/help_format.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"

namespace diffattn::python {
namespace {

/// Sets the function that stops verbs of this thread, for one call.
struct StopScope {
  explicit StopScope(app::StopRequested stop) { app::set_stop_requested(stop); }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;
  ~StopScope() { app::set_stop_requested(nullptr); }
};

/// Parses the arguments of a verb, runs it and returns its exit code.
int run(const Verbs& verbs, VerbCall call) {
  const auto verb = verbs.find(call.name);
  if (verb == verbs.end()) throw WrongUse("no verb '" + call.name + "'");
  CLI::App program("", "diffattn");
  program.formatter(std::make_shared<app::HelpFormatter>());
  program.set_help_flag("-h,--help", "print this help and exit");
  const app::VerbAction action = verb->second(program);
  std::vector<std::string>& words = call.arguments;
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  words.push_back(call.name);
  try {
    program.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    app::print_out("{}", program.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw WrongUse(app::parse_message(program, error));
  }
  return action();
}

/// Returns the two lines that the program prints when there was no memory. Python adds the prefix
/// of the first one.
std::string with_advice(const std::string& message, const std::string& verb) {
  return message + "\ndiffattn: " + app::less_memory(verb);
}

}  // namespace

int run_verb(const Verbs& verbs, VerbCall call) {
  const app::JsonCapture result;
  const StopScope scope(call.stop);
  const auto give = call.give;
  const std::string verb = call.name;
  try {
    const int code = run(verbs, std::move(call));
    // main() of the program does the same.
    if (std::fflush(stdout) != 0) throw std::runtime_error("could not write to standard output");
    give(result.text().c_str());
    return code;
  } catch (const WrongUse& error) {
    give(error.what());
    return kWrongUse;
  } catch (const OutOfMemory& error) {
    give(with_advice(error.what(), verb).c_str());
    return kOutOfMemory;
  } catch (const std::bad_alloc&) {
    give(with_advice("out of memory", verb).c_str());
    return kOutOfMemory;
  } catch (const std::exception& error) {
    give(error.what());
    return kFailed;
  }
}

}  // namespace diffattn::python
