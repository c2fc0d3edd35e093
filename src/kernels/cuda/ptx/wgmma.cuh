// SPDX-License-Identifier: Apache-2.0
//
// wgmma (sm_90a): d [64, N] (+)= a [64, 16] b [16, N] with float accumulators. The four warps of a
// warpgroup issue it together; it runs asynchronously until `wgmma_wait`.
//
// Accumulator: warp w holds rows 16w .. 16w + 15. With g = lane / 4 and t = lane % 4, the thread's
// d[4i + e] is column 8i + 2t + e % 2 of row g (e < 2) or row g + 8 (e >= 2). Packed in pairs, the
// same registers serve as the register operand a of the next product: columns 16i .. 16i + 15 are
// the packed registers 4i .. 4i + 3.
//
// A 64-bit descriptor (`smem_descriptor`) describes an operand in shared memory. Tiles are
// 1024-byte aligned and have rows of 128 bytes with the 128-byte swizzle: 16-byte chunk c of row r
// is stored at chunk c ^ (r % 8).
//   K-major:  a row holds 64 values of the summed index k. The next 16 k are at descriptor + 2.
//   MN-major: a row holds one k and 64 values of the other index. The next 16 k are at
//             descriptor + 128, the next 64 values of the other index `leading_bytes` away.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Builds a descriptor. It masks the address to 18 bits, because in a cluster the top byte holds
/// the block's rank and would spill into the field of the leading offset.
__device__ inline uint64_t smem_descriptor(uint32_t smem, uint32_t leading_bytes = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return ((smem & 0x3ffff) >> 4) | (static_cast<uint64_t>(leading_bytes >> 4) << 16) | kEightRows |
         kSwizzle128;
}

/// Orders this warpgroup's register writes before the products that it issues next.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/// Commits the products issued since the last call as one group.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/// Waits until at most `kPending` groups are still in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads or writes of `r` across this point. Between the issue of a
/// product and the wait for it, the hardware uses `r` without the compiler's knowledge.
template <int kN>
__device__ inline void pin(float (&r)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kN>
__device__ inline void pin(uint32_t (&r)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

/// Makes `r` undefined. The asm of a product names `r` as input and output, so without this call
/// the compiler would keep the old values alive even if the product overwrites them.
template <int kN>
__device__ inline void discard(float (&r)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "=f"(r[i])::"memory");
}

/// The contiguous index of an operand: the summed one (K-major) or the other one (MN-major).
enum class Major : int { kK = 0, kMn = 1 };

/// The products for N = kN columns and elements of type T:
///   ss: a and b in shared memory;  rs: a in four registers, b in shared memory.
/// Adds to d if kAccumulate is true, else overwrites d.
template <class T, int kN>
struct Wgmma;

// R<n> is the asm text of the n accumulator registers, D<n> their operand constraints.
#define DIFFATTN_R16               \
  "%0, %1, %2, %3, %4, %5, %6, %7" \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DIFFATTN_R24 \
  DIFFATTN_R16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define DIFFATTN_R32 \
  DIFFATTN_R24       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DIFFATTN_R40 \
  DIFFATTN_R32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DIFFATTN_R48 \
  DIFFATTN_R40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DIFFATTN_R56 \
  DIFFATTN_R48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DIFFATTN_R64 \
  DIFFATTN_R56       \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DIFFATTN_R80                         \
  DIFFATTN_R64                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define DIFFATTN_R88 \
  DIFFATTN_R80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define DIFFATTN_R96 \
  DIFFATTN_R88       \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define DIFFATTN_R128                                \
  DIFFATTN_R96                                       \
  ", %96, %97, %98, %99, %100, %101, %102, %103"     \
  ", %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"
#define DIFFATTN_D8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define DIFFATTN_D16() DIFFATTN_D8(0), DIFFATTN_D8(8)
#define DIFFATTN_D24() DIFFATTN_D16(), DIFFATTN_D8(16)
#define DIFFATTN_D32() DIFFATTN_D24(), DIFFATTN_D8(24)
#define DIFFATTN_D40() DIFFATTN_D32(), DIFFATTN_D8(32)
#define DIFFATTN_D48() DIFFATTN_D40(), DIFFATTN_D8(40)
#define DIFFATTN_D56() DIFFATTN_D48(), DIFFATTN_D8(48)
#define DIFFATTN_D64() DIFFATTN_D56(), DIFFATTN_D8(56)
#define DIFFATTN_D80() DIFFATTN_D64(), DIFFATTN_D8(64), DIFFATTN_D8(72)
#define DIFFATTN_D88() DIFFATTN_D80(), DIFFATTN_D8(80)
#define DIFFATTN_D96() DIFFATTN_D88(), DIFFATTN_D8(88)
#define DIFFATTN_D128() \
  DIFFATTN_D96(), DIFFATTN_D8(96), DIFFATTN_D8(104), DIFFATTN_D8(112), DIFFATTN_D8(120)

// n0 .. n6 are the asm numbers of the operands that follow the accumulator.
#define DIFFATTN_SS(TYPE, N, REGISTERS, OPERANDS, n0, n1, n2, n3, n4)                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                         \
               ", 0;\n"                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS   \
               "}, %" #n0 ", %" #n1 ", p, 1, 1, %" #n3 ", %" #n4 ";\n}\n"                       \
               : OPERANDS()                                                                     \
               : "l"(a), "l"(b), "n"(static_cast<int>(kAccumulate)), "n"(static_cast<int>(kA)), \
                 "n"(static_cast<int>(kB)))
#define DIFFATTN_RS(TYPE, N, REGISTERS, OPERANDS, n0, n1, n2, n3, n4, n5, n6)                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5                                         \
               ", 0;\n"                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS   \
               "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, %" #n6 ";\n}\n" \
               : OPERANDS()                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                            \
                 "n"(static_cast<int>(kAccumulate)), "n"(static_cast<int>(kB)))
#define DIFFATTN_WGMMA(N, R, D, n0, n1, n2, n3, n4, n5, n6)                       \
  template <class T>                                                              \
  struct Wgmma<T, N> {                                                            \
    template <bool kAccumulate, Major kA, Major kB>                               \
    __device__ static void ss(float (&d)[N / 2], uint64_t a, uint64_t b) {        \
      if constexpr (__is_same(T, __nv_bfloat16)) {                                \
        DIFFATTN_SS("bf16", N, R, D, n0, n1, n2, n3, n4);                         \
      } else {                                                                    \
        DIFFATTN_SS("f16", N, R, D, n0, n1, n2, n3, n4);                          \
      }                                                                           \
    }                                                                             \
    template <bool kAccumulate, Major kB>                                         \
    __device__ static void rs(float (&d)[N / 2], const uint32_t* a, uint64_t b) { \
      if constexpr (__is_same(T, __nv_bfloat16)) {                                \
        DIFFATTN_RS("bf16", N, R, D, n0, n1, n2, n3, n4, n5, n6);                 \
      } else {                                                                    \
        DIFFATTN_RS("f16", N, R, D, n0, n1, n2, n3, n4, n5, n6);                  \
      }                                                                           \
    }                                                                             \
  }

DIFFATTN_WGMMA(32, DIFFATTN_R16, DIFFATTN_D16, 16, 17, 18, 19, 20, 21, 22);
DIFFATTN_WGMMA(48, DIFFATTN_R24, DIFFATTN_D24, 24, 25, 26, 27, 28, 29, 30);
DIFFATTN_WGMMA(64, DIFFATTN_R32, DIFFATTN_D32, 32, 33, 34, 35, 36, 37, 38);
DIFFATTN_WGMMA(80, DIFFATTN_R40, DIFFATTN_D40, 40, 41, 42, 43, 44, 45, 46);
DIFFATTN_WGMMA(96, DIFFATTN_R48, DIFFATTN_D48, 48, 49, 50, 51, 52, 53, 54);
DIFFATTN_WGMMA(112, DIFFATTN_R56, DIFFATTN_D56, 56, 57, 58, 59, 60, 61, 62);
DIFFATTN_WGMMA(128, DIFFATTN_R64, DIFFATTN_D64, 64, 65, 66, 67, 68, 69, 70);
DIFFATTN_WGMMA(160, DIFFATTN_R80, DIFFATTN_D80, 80, 81, 82, 83, 84, 85, 86);
DIFFATTN_WGMMA(176, DIFFATTN_R88, DIFFATTN_D88, 88, 89, 90, 91, 92, 93, 94);
DIFFATTN_WGMMA(192, DIFFATTN_R96, DIFFATTN_D96, 96, 97, 98, 99, 100, 101, 102);
DIFFATTN_WGMMA(256, DIFFATTN_R128, DIFFATTN_D128, 128, 129, 130, 131, 132, 133, 134);

#undef DIFFATTN_R16
#undef DIFFATTN_D16
#undef DIFFATTN_R24
#undef DIFFATTN_D24
#undef DIFFATTN_R32
#undef DIFFATTN_D32
#undef DIFFATTN_R40
#undef DIFFATTN_D40
#undef DIFFATTN_R48
#undef DIFFATTN_D48
#undef DIFFATTN_R56
#undef DIFFATTN_D56
#undef DIFFATTN_R64
#undef DIFFATTN_D64
#undef DIFFATTN_R80
#undef DIFFATTN_D80
#undef DIFFATTN_R88
#undef DIFFATTN_D88
#undef DIFFATTN_R96
#undef DIFFATTN_D96
#undef DIFFATTN_R128
#undef DIFFATTN_D128
#undef DIFFATTN_D8
#undef DIFFATTN_SS
#undef DIFFATTN_RS
#undef DIFFATTN_WGMMA

}  // namespace diffattn::cuda::ptx
