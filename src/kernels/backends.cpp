// SPDX-License-Identifier: Apache-2.0
//
// The list of CPU backends, fastest first. A new backend needs one entry here.

#include <array>
#include <string>
#include <utility>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cpu.h"
#include "diffattn/kernels/error.h"
#include "diffattn/kernels/reference.h"
#include "kernels/cpu/host/cpu_features.h"

namespace diffattn {
namespace {

bool always() { return true; }
bool everything(const Problem&) { return true; }

using Backends = std::array<Backend, 6>;

constexpr Backends kCpuBackends{
    Backend{.name = "amx",
            .description = "fused tiles in bf16, AMX",
            .available = cpu::amx::available,
            .takes = cpu::amx::takes,
            .forward = cpu::amx::forward,
            .backward = cpu::amx::backward,
            .stats = cpu::amx::stats,
            .stats_backward = cpu::amx::stats_backward,
            .map = cpu::amx::map},
    Backend{.name = "avx512_bf16",
            .description = "fused tiles in bf16, AVX512-BF16",
            .available = cpu::avx512_bf16::available,
            .takes = cpu::avx512_bf16::takes,
            .forward = cpu::avx512_bf16::forward,
            .backward = cpu::avx512_bf16::backward,
            .stats = cpu::avx512_bf16::stats,
            .stats_backward = cpu::avx512_bf16::stats_backward,
            .map = cpu::avx512_bf16::map},
    Backend{.name = "avx512",
            .description = "fused tiles in fp32, AVX-512",
            .available = cpu::avx512::available,
            .takes = cpu::avx512::takes,
            .forward = cpu::avx512::forward,
            .backward = cpu::avx512::backward,
            .stats = cpu::avx512::stats,
            .stats_backward = cpu::avx512::stats_backward,
            .map = cpu::avx512::map},
    Backend{.name = "avx2",
            .description = "fused tiles in fp32, AVX2 and FMA",
            .available = cpu::avx2::available,
            .takes = cpu::avx2::takes,
            .forward = cpu::avx2::forward,
            .backward = cpu::avx2::backward,
            .stats = cpu::avx2::stats,
            .stats_backward = cpu::avx2::stats_backward,
            .map = cpu::avx2::map},
    Backend{.name = "float64",
            .description = "blocks of rows in double",
            .available = cpu::float64::available,
            .takes = cpu::float64::takes,
            .forward = cpu::float64::forward,
            .backward = cpu::float64::backward,
            .stats = cpu::float64::stats,
            .stats_backward = cpu::float64::stats_backward,
            .map = cpu::float64::map},
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

/// Puts avx512 before avx512_bf16 on processors where vdpbf16ps is slower than fp32 FMA.
Backends in_order_of_speed() {
  Backends backends = kCpuBackends;
  if (!cpu::has_fast_bf16_dot_products()) std::swap(backends[1], backends[2]);
  return backends;
}

}  // namespace

std::span<const Backend> cpu_backends() {
  static const Backends backends = in_order_of_speed();
  return backends;
}

const Backend& choose_cpu_backend(const Problem& problem, std::string_view limit) {
  bool below_limit = limit.empty();
  for (const Backend& backend : cpu_backends()) {
    below_limit = below_limit || limit == backend.name;
    if (below_limit && backend.available() && backend.takes(problem)) return backend;
  }
  std::string names;
  for (const Backend& backend : cpu_backends()) names += std::string(" ") + backend.name;
  throw_argument_error("backend", "one of:" + names, "'" + std::string(limit) + "'");
}

}  // namespace diffattn
