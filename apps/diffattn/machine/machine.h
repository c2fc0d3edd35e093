// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace diffattn::app {

/// This machine as Linux and the NVIDIA driver report it.
struct Machine {
  std::string cpu;               // model name
  int cores = 0;                 // processors that this process may use
  std::vector<std::string> isa;  // instruction sets that our kernels use
  int64_t memory_bytes = 0;
  bool memory_limited = false;    // memory_bytes is the limit of the process's control group
  std::vector<std::string> gpus;  // model names
};

Machine this_machine();

/// Returns the names of the GPUs, each once: "NVIDIA H200". Returns "GPU" if the driver names none.
std::string gpu_names(const Machine& machine);

/// Returns why `device` ("cpu", "cuda", "cuda:1") cannot be used here, or an empty string if it
/// can. Fits CLI11's check().
std::string device_problem(const std::string& device);

/// Returns "1 thread", "2 threads", ...
std::string thread_text(int64_t threads);

/// Returns a perplexity with `digits` decimals; from a million on in scientific notation.
std::string perplexity_text(double perplexity, int digits);

}  // namespace diffattn::app
