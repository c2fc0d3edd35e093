// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What this machine is, as the operating system tells it.
namespace diffattn::app {

struct Machine {
  std::string cpu;               // model name
  int cores = 0;                 // processors this process may use
  std::vector<std::string> isa;  // the instruction sets our kernels care about
  int64_t memory_bytes = 0;
  bool memory_limited = false;    // memory_bytes are those of the process's control group
  std::vector<std::string> gpus;  // model names, as the NVIDIA driver lists them
};

Machine this_machine();

/// Why nothing can be computed on `device` ("cpu", "cuda", "cuda:1") here; empty when it can. For
/// CLI11's check().
std::string device_problem(const std::string& device);

/// "1 thread", "2 threads".
std::string thread_text(int64_t threads);

/// With `digits` behind the point, or in powers of ten where it is out of all proportion.
std::string perplexity_text(double perplexity, int digits);

}  // namespace diffattn::app
