// SPDX-License-Identifier: Apache-2.0
#include "train/stop_signal.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace diffattn::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1};
volatile std::sig_atomic_t received_signal = 0;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void on_signal(int signal) {
  // Files have temporary names until they are complete, so an immediate exit damages none.
  if (received_signal != 0) _exit(128 + signal);
  received_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // system calls of a running save must not return EINTR
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

int StopSignal::received() const { return received_signal; }

}  // namespace diffattn::train
