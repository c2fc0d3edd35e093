// SPDX-License-Identifier: Apache-2.0
//
// diffattn serve in a build without the header of libmicrohttpd.

#include "apps/diffattn/verbs.h"
#include "diffattn/error.h"

namespace diffattn::app {

VerbAction add_serve(CLI::App& app) {
  app.add_subcommand("serve", "Serve a language model (not in this build)")->allow_extras();
  return []() -> int {
    throw Error(
        "diffattn: serve: this build has no server, because microhttpd.h was missing; install "
        "libmicrohttpd-dev and build again");
  };
}

}  // namespace diffattn::app
