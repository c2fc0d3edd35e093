// SPDX-License-Identifier: Apache-2.0
//
// Runs a verb of the program inside the Python process. Python calls the C function with ctypes,
// which releases the GIL during the call and takes it again for callbacks.

#include "apps/diffattn/verbs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/interrupt.h"
#include "apps/diffattn/terminal/json_output.h"
#include "diffattn/train/run_config.h"

namespace {

using diffattn::app::VerbAction;

// python/diffattn/_full.py has the same numbers. Smaller ones are exit codes of the verbs.
constexpr int kFailed = 100, kWrongUse = 101, kInterrupted = 102;

const std::map<std::string, VerbAction (*)(CLI::App&)>& verbs() {
  using namespace diffattn::app;
  static const std::map<std::string, VerbAction (*)(CLI::App&)> all{
      {"analyze", add_analyze}, {"compare", add_compare}, {"convert", add_convert},
      {"eval", add_eval},       {"info", add_info},       {"train", add_train}};
  return all;
}

/// Parses the arguments of a verb, runs it and returns its exit code.
int run(const std::string& name, std::vector<std::string> arguments) {
  const auto verb = verbs().find(name);
  if (verb == verbs().end()) throw diffattn::train::ConfigError("no verb '" + name + "'");
  CLI::App app;
  const VerbAction action = verb->second(app);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  arguments.push_back(name);
  app.parse(std::move(arguments));
  return action();
}

/// Sets the function that stops verbs of this thread, for one call.
struct StopScope {
  explicit StopScope(diffattn::app::StopRequested stop) { diffattn::app::set_stop_requested(stop); }
  ~StopScope() { diffattn::app::set_stop_requested(nullptr); }
};

}  // namespace

/// Runs a verb with `count` arguments and hands its JSON result, or the text of an error, to
/// `give`. Returns the exit code of the verb or one of the codes above.
extern "C" int diffattn_run_verb(const char* name, const char* const* arguments, int count,
                                 diffattn::app::StopRequested stop, void (*give)(const char*)) {
  const diffattn::app::JsonCapture result;
  const StopScope scope(stop);
  try {
    const int code = run(name, {arguments, arguments + count});
    give(result.text().c_str());
    return code;
  } catch (const diffattn::app::Interrupted&) {
    return kInterrupted;
  } catch (const CLI::ParseError& error) {
    give(error.what());
    return kWrongUse;
  } catch (const diffattn::train::ConfigError& error) {
    give(error.what());
    return kWrongUse;
  } catch (const c10::Error& error) {
    give(error.what_without_backtrace());
  } catch (const std::exception& error) {
    give(error.what());
  }
  return kFailed;
}
