// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/options/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "io/text.h"

namespace diffattn::app {
namespace {

constexpr size_t kShortestPrefix = 3;  // "gen" for "generate"

std::string without_dashes(const std::string& name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

}  // namespace

std::string nearest_hint(const std::string& word, const std::vector<std::string>& names) {
  const std::string written = without_dashes(word);
  std::string best;
  size_t least = std::numeric_limits<size_t>::max();
  for (const std::string& name : names) {
    const std::string known = without_dashes(name);
    const bool begins = written.size() >= kShortestPrefix && known.starts_with(written);
    const size_t distance = begins ? 1 : io::edit_distance(written, known);
    if (distance > std::max<size_t>(1, (written.size() + 1) / 3) || distance >= least) continue;
    least = distance;
    best = name;
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

}  // namespace diffattn::app
