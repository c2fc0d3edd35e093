// SPDX-License-Identifier: Apache-2.0
//
// mma.sync for tf32 (sm_80 and later). The hardware reads the upper 19 bits of each 32-bit element
// and ignores the rest. Fragment layouts as (row, column), with g = lane / 4, t = lane % 4:
//
//   A 16x8: a[0] = (g, t)   a[1] = (g+8, t)   a[2] = (g, t+4)   a[3] = (g+8, t+4)
//   B 8x8:  b0 = (t, g)     b1 = (t+4, g)
//   C 16x8: c[0..1] = (g, 2t..2t+1)           c[2..3] = (g+8, 2t..2t+1)
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Computes c [16, 8] += a [16, 8] b [8, 8]. The hardware truncates the sums to float instead of
/// rounding them.
__device__ inline void mma_m16n8k8_tf32(float (&c)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace diffattn::cuda::ptx
