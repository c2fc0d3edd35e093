// SPDX-License-Identifier: Apache-2.0
#include "serve/http/microhttpd.h"

#include <dlfcn.h>

#include <string>

#include "diffattn/error.h"

namespace diffattn::serve {
namespace {

constexpr char kLibrary[] = "libmicrohttpd.so.12";

template <class F>
void load(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(std::string("diffattn serve: ") + kLibrary + " has no function " + name);
  }
}

Microhttpd load_library() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(std::string("diffattn serve: cannot load ") + kLibrary +
                ", which is the package libmicrohttpd12 of Debian and Ubuntu; install it with "
                "apt-get install libmicrohttpd12");
  }
  Microhttpd api;
  load(library, "MHD_start_daemon", api.start_daemon);
  load(library, "MHD_stop_daemon", api.stop_daemon);
  load(library, "MHD_get_daemon_info", api.get_daemon_info);
  load(library, "MHD_get_connection_info", api.get_connection_info);
  load(library, "MHD_lookup_connection_value", api.lookup_connection_value);
  load(library, "MHD_suspend_connection", api.suspend_connection);
  load(library, "MHD_resume_connection", api.resume_connection);
  load(library, "MHD_queue_response", api.queue_response);
  load(library, "MHD_create_response_from_buffer", api.create_response_from_buffer);
  load(library, "MHD_create_response_from_callback", api.create_response_from_callback);
  load(library, "MHD_add_response_header", api.add_response_header);
  load(library, "MHD_destroy_response", api.destroy_response);
  return api;
}

}  // namespace

const Microhttpd& microhttpd() {
  static const Microhttpd api = load_library();
  return api;
}

}  // namespace diffattn::serve
