// SPDX-License-Identifier: Apache-2.0
#include "run_file.h"

#include <fmt/core.h>

#include "diffattn/io/error.h"
#include "diffattn/io/settings.h"

namespace diffattn::app {

using train::ConfigError;
using train::RunConfig;

namespace {

/// What is no TOML is wrong use, as wrong keys and values are; a file that cannot be read is not.
std::vector<io::Setting> settings_of(const std::string& path) {
  try {
    return io::read_settings(path);
  } catch (const io::Error& error) {
    if (error.offset()) throw ConfigError(error.what());
    throw;
  }
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  RunConfig config;
  if (!path.empty()) {
    for (const io::Setting& setting : settings_of(path)) {
      try {
        config.set(setting);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("{}: line {}: {}", path, setting.line, error.what()));
      }
    }
  }
  set_overrides(config, overrides);
  return config;
}

void set_overrides(RunConfig& config, const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      throw ConfigError(fmt::format("--set: expected key=value, got '{}'", text));
    }
    config.set(text.substr(0, equals), text.substr(equals + 1));
  }
}

}  // namespace diffattn::app
