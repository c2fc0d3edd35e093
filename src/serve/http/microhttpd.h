// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <microhttpd.h>

namespace diffattn::serve {

/// The functions of libmicrohttpd that the server calls, loaded when the server starts. Programs
/// and wheels therefore run without the library until somebody serves a model.
struct Microhttpd {
  decltype(&MHD_start_daemon) start_daemon = nullptr;
  decltype(&MHD_stop_daemon) stop_daemon = nullptr;
  decltype(&MHD_get_daemon_info) get_daemon_info = nullptr;
  decltype(&MHD_get_connection_info) get_connection_info = nullptr;
  decltype(&MHD_lookup_connection_value) lookup_connection_value = nullptr;
  decltype(&MHD_suspend_connection) suspend_connection = nullptr;
  decltype(&MHD_resume_connection) resume_connection = nullptr;
  decltype(&MHD_queue_response) queue_response = nullptr;
  decltype(&MHD_create_response_from_buffer) create_response_from_buffer = nullptr;
  decltype(&MHD_create_response_from_callback) create_response_from_callback = nullptr;
  decltype(&MHD_add_response_header) add_response_header = nullptr;
  decltype(&MHD_destroy_response) destroy_response = nullptr;
};

/// Loads libmicrohttpd.so.12 once. Throws diffattn::Error that names the package to install.
const Microhttpd& microhttpd();

}  // namespace diffattn::serve
