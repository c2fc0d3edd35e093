// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>

#include "compare/compare.h"
#include "diffattn/nn/presets.h"

namespace diffattn::compare {
namespace {

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

Contender contender(const std::string& text, const train::RunConfig& config) {
  Contender result{text, config};
  const auto parts = parts_of(text);
  const auto& presets = nn::preset_names();
  if (std::ranges::find(presets, parts.front()) == presets.end()) {
    throw train::ConfigError(fmt::format("--models: expected one of {}, got '{}'",
                                         fmt::join(presets, ", "), parts.front()));
  }
  result.config.set("model.attention", parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) {
      throw train::ConfigError("--models: expected preset:key=value, got '" + text + "'");
    }
    const std::string key = parts[i].substr(0, equals);
    result.config.set(key.find('.') == std::string::npos ? "model." + key : key,
                      parts[i].substr(equals + 1));
  }
  return result;
}

}  // namespace diffattn::compare
