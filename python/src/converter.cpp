// SPDX-License-Identifier: Apache-2.0
//
// The verb `convert` as a library that needs no torch.

#include "python/src/run_verb.h"

extern "C" int diffattn_run_verb(const char* name, const char* const* arguments, int count,
                                 diffattn::app::StopRequested stop, void (*give)(const char*)) {
  using namespace diffattn;
  return python::run_verb({{"convert", app::add_convert}},
                          {name, {arguments, arguments + count}, stop, give});
}
