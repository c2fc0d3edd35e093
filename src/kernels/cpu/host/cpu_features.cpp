// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/host/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace diffattn::cpu {
namespace {

/// Requests the 8 KB of AMX tile state, which Linux grants only on request (ARCH_REQ_XCOMP_PERM,
/// XFEATURE_XTILEDATA).
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// True if the processor has AMX-TILE and AMX-BF16: CPUID leaf 7, EDX bits 24 and 22.
/// __builtin_cpu_supports of g++ 12 does not know them.
bool cpu_has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d >> 24 & 1u) != 0 && (d >> 22 & 1u) != 0;
}

/// The family of the processor: CPUID leaf 1, EAX bits 8 to 11 plus 20 to 27.
unsigned cpu_family() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
  return (a >> 8 & 0xfu) + (a >> 20 & 0xffu);
}

}  // namespace

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
  return has;
}

bool has_avx512() {
  static const bool has = has_avx2() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

bool has_avx512_bf16() {
  static const bool has = has_avx512() && __builtin_cpu_supports("avx512bf16");
  return has;
}

bool has_amx_bf16() {
  static const bool has = has_avx512_bf16() && cpu_has_amx_bf16() && ask_for_tiles();
  return has;
}

bool has_full_avx512_on_amd() {
  static const bool has = has_avx512() && __builtin_cpu_is("amd") && cpu_family() >= 0x1a;
  return has;
}

bool has_fast_bf16_dot_products() {
  static const bool has = has_avx512_bf16() && __builtin_cpu_is("amd");
  return has;
}

}  // namespace diffattn::cpu
