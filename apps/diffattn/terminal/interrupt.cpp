// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/interrupt.h"

namespace diffattn::app {
namespace {

// A verb and its host share a thread, so verbs on other threads are not affected.
thread_local StopRequested stop_requested = nullptr;

}  // namespace

void set_stop_requested(StopRequested stop) { stop_requested = stop; }

void check_interrupt() {
  if (stop_requested != nullptr && stop_requested()) throw Interrupted();
}

}  // namespace diffattn::app
