// SPDX-License-Identifier: Apache-2.0
//
// The verbs of the full library.

#include <c10/util/Exception.h>

#include "apps/diffattn/machine/out_of_memory.h"
#include "diffattn/train/run_config.h"
#include "python/src/run_verb.h"

namespace diffattn::python {
namespace {

/// Adds a verb whose errors of torch have no backtrace. One that says that there was no memory
/// becomes OutOfMemory, and an error in a run file becomes WrongUse.
template <app::VerbAction (*add)(CLI::App&)>
app::VerbAction translated(CLI::App& app) {
  return [action = add(app)] {
    try {
      return action();
    } catch (const train::ConfigError& error) {
      throw WrongUse(error.what());
    } catch (const c10::Error& error) {
      if (app::is_out_of_memory(error)) throw OutOfMemory(error.what_without_backtrace());
      throw std::runtime_error(error.what_without_backtrace());
    }
  };
}

}  // namespace
}  // namespace diffattn::python

extern "C" int diffattn_run_verb(const char* name, const char* const* arguments, int count,
                                 diffattn::app::StopRequested stop, void (*give)(const char*)) {
  using namespace diffattn;
  using namespace diffattn::python;
  static const Verbs verbs{{"analyze", translated<app::add_analyze>},
                           {"bench", translated<app::add_bench>},
                           {"compare", translated<app::add_compare>},
                           {"eval", translated<app::add_eval>},
                           {"info", translated<app::add_info>},
                           {"train", translated<app::add_train>}};
  return run_verb(verbs, {name, {arguments, arguments + count}, stop, give});
}
