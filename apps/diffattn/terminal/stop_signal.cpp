// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/stop_signal.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace diffattn::app {
namespace {

// A verb runs in the thread of its host that called it, so verbs in other threads are not affected.
thread_local StopRequested stop_requested = nullptr;

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};
volatile std::sig_atomic_t received_signal = 0;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void on_signal(int signal) {
  // Files have temporary names until they are complete, so an immediate exit damages none.
  if (received_signal != 0) _exit(128 + signal);
  received_signal = signal;
}

}  // namespace

void set_stop_requested(StopRequested stop) { stop_requested = stop; }

void check_interrupt() {
  if (stop_requested != nullptr && stop_requested()) throw Interrupted();
}

StopSignal::StopSignal() {
  if (stop_requested != nullptr) return;
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // system calls of a running save must not return EINTR
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  if (stop_requested != nullptr) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool StopSignal::received() const {
  return stop_requested != nullptr ? stop_requested() : received_signal != 0;
}

}  // namespace diffattn::app
