// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"

namespace diffattn::train {
namespace {

constexpr uint64_t kMaxLogBytes = uint64_t{4} << 30;

/// Returns the step of a line, or nothing if the line is not an object with a step.
std::optional<int64_t> step_of(std::string_view line, const std::string& path) {
  try {
    const auto json = io::parse_json(line, path);
    return io::JsonValue(json, path).at("step").to_int();
  } catch (const io::Error&) {
    return std::nullopt;
  }
}

/// Returns the lines up to `step`, without an unfinished last line of a killed run. Damaged lines
/// must not keep a run from resuming, so it warns about them and leaves them out.
std::string lines_until(const std::string& text, const std::string& path, int64_t step) {
  std::string kept;
  int64_t damaged = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string_view line(text.data() + begin, end + 1 - begin);
    const auto found = step_of(line.substr(0, line.size() - 1), path);
    if (!found) ++damaged;
    if (found && *found <= step) kept += line;
  }
  if (damaged > 0) {
    TORCH_WARN(path, ": removed ", damaged, " lines that are not JSON objects with a step");
  }
  return kept;
}

}  // namespace

std::string event_tag(const std::string& name) {
  constexpr std::string_view kValid = "valid_", kLayer = "layer.";
  if (name.starts_with(kValid)) return "valid/" + name.substr(kValid.size());
  if (name.starts_with(kLayer)) {
    const size_t dot = name.find('.', kLayer.size());
    if (dot != std::string::npos) return name.substr(dot + 1) + "/" + name.substr(0, dot);
  }
  for (const char* of_training : {"loss", "gradient_norm", "learning_rate", "skipped"}) {
    if (name == of_training) return "train/" + name;
  }
  for (const char* of_speed :
       {"tokens", "tokens_per_second", "model_flop_utilisation", "memory_mib"}) {
    if (name == of_speed) return "speed/" + name;
  }
  return "attention/" + name;
}

MetricsLog::MetricsLog(const std::string& folder, int64_t step)
    : path_(folder + "/metrics.jsonl"), events_(folder) {
  if (std::filesystem::exists(path_)) {
    io::write_text(path_, lines_until(io::read_text(path_, kMaxLogBytes), path_, step));
  }
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw io::Error(path_, std::string("could not be opened: ") + strerror(errno));
}

MetricsLog::~MetricsLog() { close(fd_); }

void MetricsLog::write(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : values) {
    line +=
        fmt::format(", \"{}\": {}", name, std::isfinite(value) ? fmt::format("{}", value) : "null");
  }
  line += "}\n";
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    throw io::Error(path_, std::string("could not be written: ") +
                               (written < 0 ? strerror(errno) : "no space left"));
  }
  std::vector<std::pair<std::string, double>> tagged;
  for (const auto& [name, value] : values) tagged.emplace_back(event_tag(name), value);
  events_.scalars(step, tagged);
}

}  // namespace diffattn::train
