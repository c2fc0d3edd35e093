// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/run_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "diffattn/io/error.h"
#include "io/settings.h"

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

/// A key that somebody wrote, and where.
struct Given {
  std::string key, where;
};

std::vector<Given> set_each(RunConfig& config, const std::vector<std::string>& overrides) {
  std::vector<Given> given;
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError(fmt::format("--set: expected key=value, got '{}'", text));
    }
    config.set(text.substr(0, equals), text.substr(equals + 1));
    given.push_back({text.substr(0, equals), "--set"});
  }
  return given;
}

/// A file may hold the sections of several tasks, so what this one does not read is no mistake; but
/// who writes a key expects it to matter.
void warn_of_unread(const RunConfig& config, const std::vector<Given>& given) {
  const bool turned_off = config.task == "needle" &&
                          std::ranges::find(given, "curriculum.steps", &Given::key) != given.end();
  for (const auto& [key, where] : given) {
    if (config.reads(key)) continue;
    if (turned_off && key.starts_with("curriculum.")) continue;
    fmt::print(stderr,
               "diffattn: {}: {} has no effect: a run with task = \"{}\"{} does not read it\n",
               where, key, config.task, config.data.train.empty() ? "" : " and data.train");
  }
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  RunConfig config;
  std::vector<Given> given;
  if (!path.empty()) {
    for (const io::Setting& setting : settings_of(path)) {
      const std::string where = fmt::format("{}: line {}", path, setting.line);
      try {
        config.set(setting);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("{}: {}", where, error.what()));
      }
      given.push_back({setting.key, where});
    }
  }
  for (Given& one : set_each(config, overrides)) given.push_back(std::move(one));
  warn_of_unread(config, given);
  return config;
}

void set_overrides(RunConfig& config, const std::vector<std::string>& overrides) {
  const std::vector<Given> given = set_each(config, overrides);
  warn_of_unread(config, given);
}

}  // namespace diffattn::app
