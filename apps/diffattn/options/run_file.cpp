// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/run_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "apps/diffattn/terminal/print.h"
#include "diffattn/io/error.h"
#include "io/settings.h"

namespace diffattn::app {

using train::ConfigError;
using train::RunConfig;

namespace {

/// Reads a TOML file. A syntax error, which has an offset, counts as wrong use like a wrong key; a
/// file that cannot be read does not.
std::vector<io::Setting> settings_of(const std::string& path) {
  try {
    return io::read_settings(path);
  } catch (const io::Error& error) {
    if (error.offset()) throw ConfigError(error.what());
    throw;
  }
}

/// A key that the user set, and the place: "run.toml: line 3" or "--set".
struct GivenKey {
  std::string key, where;
};

std::vector<GivenKey> set_each(RunConfig& config, const std::vector<std::string>& overrides) {
  std::vector<GivenKey> given;
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

/// Warns about keys that have no effect. They are no error, because one file may hold the sections
/// of several tasks.
void warn_of_unread(const RunConfig& config, const std::vector<GivenKey>& given) {
  // curriculum.steps = 0 switches the section off on purpose.
  const bool sets_curriculum =
      config.task == train::Task::kNeedle &&
      std::ranges::find(given, "curriculum.steps", &GivenKey::key) != given.end();
  for (const auto& [key, where] : given) {
    if (config.reads(key)) continue;
    if (sets_curriculum && key.starts_with("curriculum.")) continue;
    print_note("diffattn: {}: {} has no effect: a run with task = \"{}\"{} does not read it\n",
               where, key, train::task_name(config.task),
               config.data.train.empty() ? "" : " and data.train");
  }
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  RunConfig config;
  std::vector<GivenKey> given;
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
  for (GivenKey& one : set_each(config, overrides)) given.push_back(std::move(one));
  warn_of_unread(config, given);
  return config;
}

void set_overrides(RunConfig& config, const std::vector<std::string>& overrides) {
  const std::vector<GivenKey> given = set_each(config, overrides);
  warn_of_unread(config, given);
}

}  // namespace diffattn::app
