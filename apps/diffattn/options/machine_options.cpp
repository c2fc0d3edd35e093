// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/machine_options.h"

#include <torch/torch.h>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"

namespace diffattn::app {

CLI::Option* add_device_option(CLI::App& verb, std::string& device) {
  return verb.add_option("--device", device, "cpu, cuda or cuda:N (default cpu)")
      ->check(device_problem);
}

CLI::Option* add_threads_option(CLI::App& verb) {
  return verb
      .add_option_function<int>(
          "--threads", [](int count) { torch::set_num_threads(count); },
          "CPU threads (default: as torch chooses)")
      ->check(integer_in(1, 1024));
}

}  // namespace diffattn::app
