// SPDX-License-Identifier: Apache-2.0
//
// Loops of independent multiply-adds. The data are zeros, because a sum that grows or becomes
// denormal would change the speed. They are written in assembly, so that this file needs no
// instruction-set flags.

#include "benchmarks/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace diffattn::bench {
namespace {

constexpr int64_t kLoops = 200000;
constexpr int kRepeats = 40;

// Sixteen accumulators: twice as many as two ports with a latency of four clocks need.
#define DIFFATTN_SIXTEEN(op, reg)                                                                \
  op " %%" reg "30, %%" reg "31, %%" reg "0\n" op " %%" reg "30, %%" reg "31, %%" reg "1\n" op   \
     " %%" reg "30, %%" reg "31, %%" reg "2\n" op " %%" reg "30, %%" reg "31, %%" reg "3\n" op   \
     " %%" reg "30, %%" reg "31, %%" reg "4\n" op " %%" reg "30, %%" reg "31, %%" reg "5\n" op   \
     " %%" reg "30, %%" reg "31, %%" reg "6\n" op " %%" reg "30, %%" reg "31, %%" reg "7\n" op   \
     " %%" reg "30, %%" reg "31, %%" reg "8\n" op " %%" reg "30, %%" reg "31, %%" reg "9\n" op   \
     " %%" reg "30, %%" reg "31, %%" reg "10\n" op " %%" reg "30, %%" reg "31, %%" reg "11\n" op \
     " %%" reg "30, %%" reg "31, %%" reg "12\n" op " %%" reg "30, %%" reg "31, %%" reg "13\n" op \
     " %%" reg "30, %%" reg "31, %%" reg "14\n" op " %%" reg "30, %%" reg "31, %%" reg "15\n"

#define DIFFATTN_SUMS                                                                      \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"

void run_fma512(int64_t loops) {
  asm volatile(
      "vzeroall\n vpxord %%zmm30, %%zmm30, %%zmm30\n vpxord %%zmm31, %%zmm31, %%zmm31\n"
      "1:\n" DIFFATTN_SIXTEEN("vfmadd231ps", "zmm") "dec %0\n jnz 1b\n"
      : "+r"(loops)::DIFFATTN_SUMS);
}

void run_dot512(int64_t loops) {
  asm volatile(
      "vzeroall\n vpxord %%zmm30, %%zmm30, %%zmm30\n vpxord %%zmm31, %%zmm31, %%zmm31\n"
      "1:\n" DIFFATTN_SIXTEEN("vdpbf16ps", "zmm") "dec %0\n jnz 1b\n"
      : "+r"(loops)::DIFFATTN_SUMS);
}

/// Twelve accumulators: two ports with a latency of five clocks need ten, and AVX2 has 16
/// registers.
void run_fma256(int64_t loops) {
  asm volatile(
      "vzeroall\n1:\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm0\n vfmadd231ps %%ymm14, %%ymm15, %%ymm1\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm2\n vfmadd231ps %%ymm14, %%ymm15, %%ymm3\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm4\n vfmadd231ps %%ymm14, %%ymm15, %%ymm5\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm6\n vfmadd231ps %%ymm14, %%ymm15, %%ymm7\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm8\n vfmadd231ps %%ymm14, %%ymm15, %%ymm9\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm10\n vfmadd231ps %%ymm14, %%ymm15, %%ymm11\n"
      "dec %0\n jnz 1b\n"
      : "+r"(loops)::DIFFATTN_SUMS);
}

/// Four tile registers of sums, as in the kernels.
void run_amx(int64_t loops) {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile(
      "ldtilecfg %1\n tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n1:\n"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
      "dec %0\n jnz 1b\n tilerelease\n"
      : "+r"(loops)
      : "m"(config)
      : "cc");
}

double best_rate(void (*run)(int64_t), double flop_per_loop, int64_t loops) {
  double best = 0.0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run(loops);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, flop_per_loop * static_cast<double>(loops) / time.count());
  }
  return best;
}

}  // namespace

double peak_flops(std::string_view backend) {
  if (backend == "amx") return best_rate(run_amx, 4 * 16 * 16 * 32 * 2, kLoops / 8);
  if (backend == "avx512_bf16") return best_rate(run_dot512, 16 * 64, kLoops);
  if (backend == "avx512") return best_rate(run_fma512, 16 * 32, kLoops);
  if (backend == "avx2") return best_rate(run_fma256, 12 * 16, kLoops);
  return 0.0;
}

}  // namespace diffattn::bench
