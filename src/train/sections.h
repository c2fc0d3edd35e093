// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/io/error.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Calls `make` and prefixes the run-file section to the key that an io::Error names.
template <class Make>
auto with_section(const std::string& section, const Make& make) {
  try {
    return make();
  } catch (const io::Error& error) {
    throw ConfigError(section + "." + error.what());
  }
}

}  // namespace diffattn::train
