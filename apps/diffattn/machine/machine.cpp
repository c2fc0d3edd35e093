// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/machine/machine.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "io/cgroup.h"

namespace diffattn::app {
namespace {

// Named as in /proc/cpuinfo, in the order of the backends that use them.
constexpr std::array kInstructionSets{"sse4_2",      "avx2",     "fma",      "f16c",
                                      "avx512f",     "avx512bw", "avx512vl", "avx512_bf16",
                                      "avx512_fp16", "amx_tile", "amx_bf16"};

/// Returns the value of a `key : value` line.
std::string value_of(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return {};
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

void read_cpuinfo(Machine& machine) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line)) {
    if (machine.cpu.empty() && line.starts_with("model name")) machine.cpu = value_of(line);
    if (flags.empty() && line.starts_with("flags")) flags = value_of(line);
  }
  std::istringstream words(flags);
  const std::set<std::string> has{std::istream_iterator<std::string>(words), {}};
  for (const char* name : kInstructionSets) {
    if (has.contains(name)) machine.isa.emplace_back(name);
  }
}

void read_gpus(Machine& machine) {
  std::error_code ignored;
  const std::filesystem::directory_iterator folders("/proc/driver/nvidia/gpus", ignored);
  for (const auto& folder : folders) {
    std::ifstream file(folder.path() / "information");
    std::string line;
    while (std::getline(file, line)) {
      if (line.starts_with("Model")) machine.gpus.push_back(value_of(line));
    }
  }
}

}  // namespace

Machine this_machine() {
  Machine machine;
  read_cpuinfo(machine);
  read_gpus(machine);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) machine.cores = CPU_COUNT(&allowed);
  machine.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  const auto limit = io::memory_limit();
  machine.memory_limited = limit && *limit < static_cast<uint64_t>(machine.memory_bytes);
  if (machine.memory_limited) machine.memory_bytes = static_cast<int64_t>(*limit);
  return machine;
}

std::string gpu_names(const Machine& machine) {
  const std::set<std::string> names(machine.gpus.begin(), machine.gpus.end());
  return names.empty() ? "GPU" : fmt::format("{}", fmt::join(names, ", "));
}

std::string device_problem(const std::string& device) {
  if (device == "cpu") return {};
  const std::string digits = device.starts_with("cuda:") ? device.substr(5) : "";
  const bool number = !digits.empty() && digits.size() < 4 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  if (device != "cuda" && !number) {
    return fmt::format("expected cpu, cuda or cuda:N, got '{}'", device);
  }
  const auto gpus = static_cast<int64_t>(torch::cuda::device_count());
  if (gpus == 0) {
    return fmt::format("expected cpu, because torch {} finds no GPU here, got '{}'",
                       DIFFATTN_TORCH_VERSION, device);
  }
  if (number && std::stoll(digits) >= gpus) {
    return fmt::format("expected at most cuda:{}, the last GPU here, got '{}'", gpus - 1, device);
  }
  return {};
}

std::string thread_text(int64_t threads) {
  return fmt::format("{} {}", threads, threads == 1 ? "thread" : "threads");
}

std::string perplexity_text(double perplexity, int digits) {
  return perplexity < 1e6 ? fmt::format("{:.{}f}", perplexity, digits)
                          : fmt::format("{:.2e}", perplexity);
}

}  // namespace diffattn::app
