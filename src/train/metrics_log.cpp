// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"

namespace diffattn::train {
namespace {

constexpr uint64_t kMaxLogBytes = uint64_t{4} << 30;

/// Returns the lines up to `step`, without an unfinished last line of a killed run.
std::string lines_until(const std::string& text, const std::string& path, int64_t step) {
  std::string kept;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string_view line(text.data() + begin, end + 1 - begin);
    const auto json = io::parse_json(line.substr(0, line.size() - 1), path);
    if (io::JsonValue(json, path).at("step").to_int() <= step) kept += line;
  }
  return kept;
}

}  // namespace

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
  events_.scalars(step, values);
}

}  // namespace diffattn::train
