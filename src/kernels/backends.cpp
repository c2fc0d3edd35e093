// SPDX-License-Identifier: Apache-2.0
//
// The list of CPU backends, best first. A new one is one entry here.

#include <array>
#include <string>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"
#include "diffattn/kernels/error.h"
#include "diffattn/kernels/reference.h"

namespace diffattn {
namespace {

bool always() { return true; }
bool everything(const Problem&) { return true; }

constexpr std::array kCpuBackends{
    Backend{.name = "avx512",
            .description = "fused tiles in fp32, AVX-512",
            .available = cpu::avx512::available,
            .takes = cpu::avx512::takes,
            .forward = cpu::avx512::forward,
            .backward = cpu::avx512::backward,
            .stats = reference::stats,
            .stats_backward = reference::stats_backward,
            .map = reference::map},
    Backend{.name = "avx2",
            .description = "fused tiles in fp32, AVX2 and FMA",
            .available = cpu::avx2::available,
            .takes = cpu::avx2::takes,
            .forward = cpu::avx2::forward,
            .backward = cpu::avx2::backward,
            .stats = reference::stats,
            .stats_backward = reference::stats_backward,
            .map = reference::map},
    // Their last version has been timed, but its results have not yet been compared on processors that
    // have the instructions: until then they run only when DIFFATTN_BACKEND names them.
    Backend{.name = "amx",
            .description = "fused tiles in bf16, AMX",
            .available = cpu::amx::available,
            .takes = cpu::amx::takes,
            .forward = cpu::amx::forward,
            .backward = cpu::amx::backward,
            .stats = reference::stats,
            .stats_backward = reference::stats_backward,
            .map = reference::map},
    Backend{.name = "avx512_bf16",
            .description = "fused tiles in bf16, AVX512-BF16",
            .available = cpu::avx512_bf16::available,
            .takes = cpu::avx512_bf16::takes,
            .forward = cpu::avx512_bf16::forward,
            .backward = cpu::avx512_bf16::backward,
            .stats = reference::stats,
            .stats_backward = reference::stats_backward,
            .map = reference::map},
    Backend{.name = "reference",
            .description = "plain loops in double, one thread",
            .available = always,
            .takes = everything,
            .forward = reference::forward,
            .backward = reference::backward,
            .stats = reference::stats,
            .stats_backward = reference::stats_backward,
            .map = reference::map},
};

}  // namespace

std::span<const Backend> cpu_backends() { return kCpuBackends; }

const Backend& choose_cpu_backend(const Problem& problem, std::string_view limit) {
  bool below_limit = limit.empty();
  for (const Backend& backend : kCpuBackends) {
    below_limit = below_limit || limit == backend.name;
    if (below_limit && backend.available() && backend.takes(problem)) return backend;
  }
  std::string names;
  for (const Backend& backend : kCpuBackends) names += std::string(" ") + backend.name;
  throw_argument_error("backend", "one of:" + names, "'" + std::string(limit) + "'");
}

}  // namespace diffattn
