// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

// Options of verbs that compute with torch.

namespace diffattn::app {

/// Adds --device: cpu, cuda or cuda:N, if this machine has it.
CLI::Option* add_device_option(CLI::App& verb, std::string& device);

/// Adds --threads, which sets the threads of torch and of our kernels.
CLI::Option* add_threads_option(CLI::App& verb);

}  // namespace diffattn::app
