// SPDX-License-Identifier: Apache-2.0
//
// The wgmma products of the backward's main kernel, and arithmetic on accumulator fragments. In the
// fragment of [64 keys, 64 queries], d[4i + 2r + e] is key 16 warp + lane / 4 + 8r and query
// 8i + 2 (lane % 4) + e. Packed in pairs, x[4i .. 4i + 3] are the register operand for 16 queries
// of the next product, and also the four 8x8 matrices of one stmatrix.
#pragma once

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/descriptor.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/ptx/ordered_access.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/backward/config.h"
#include "kernels/cuda/sm90/bias_pieces.cuh"

namespace diffattn::cuda::sm90 {

template <class T>
struct PairOf {
  using Type = __nv_bfloat162;
};
template <>
struct PairOf<float16> {
  using Type = __half2;
};

/// Return a b + c and a b for pairs of T packed in a register.
template <class T>
__device__ inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  using Pair = typename PairOf<T>::Type;
  const Pair sum = __hfma2(*reinterpret_cast<Pair*>(&a), *reinterpret_cast<Pair*>(&b),
                           *reinterpret_cast<Pair*>(&c));
  return *reinterpret_cast<const uint32_t*>(&sum);
}
template <class T>
__device__ inline uint32_t multiply(uint32_t a, uint32_t b) {
  using Pair = typename PairOf<T>::Type;
  const Pair product = __hmul2(*reinterpret_cast<Pair*>(&a), *reinterpret_cast<Pair*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

/// Computes x = 2^(s c), rounded to T and packed in pairs.
template <class T>
__device__ inline void exp_pack(const float (&s)[32], uint32_t (&x)[16], float c) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    x[i] = pack<T>(ptx::exp2(s[2 * i] * c), ptx::exp2(s[2 * i + 1] * c));
  }
}

/// Computes x = 2^(s c + bias), rounded to T and packed in pairs.
template <class T, class B>
__device__ inline void exp_pack(const float (&s)[32], uint32_t (&x)[16], float c,
                                BiasStream<B>& biases) {
  constexpr int kPairs = BiasPiece<B>::kNumbers / 2;
  constexpr float kToBase2 = sizeof(B) == 2 ? kLog2E : 1.0f;
#pragma unroll
  for (int piece = 0; piece < BiasStream<B>::kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 bias = biases.ahead[piece % BiasStream<B>::kAhead].pair(i);
      const int at = kPairs * piece + i;
      x[at] = pack<T>(ptx::exp2(fmaf(s[2 * at], c, bias.x * kToBase2)),
                      ptx::exp2(fmaf(s[2 * at + 1], c, bias.y * kToBase2)));
    }
    biases.advance(piece);
  }
}

/// Replaces p by p g, with g and the product rounded to T. The rounding takes a third of the error
/// budget and saves 4 % of the kernel's time against float.
template <class T>
__device__ inline void grad_scores(uint32_t (&p)[16], const float (&g)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i] = multiply<T>(p[i], pack<T>(g[2 * i], g[2 * i + 1]));
}
/// Replaces p by p (sign g + diff). Pairs 2j and 2j + 1 hold queries of the j-th group of 8.
template <class T>
__device__ inline void grad_scores(uint32_t (&p)[16], const float (&g)[32], const float (&diff)[16],
                                   float sign) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float low = fmaf(g[2 * i], sign, diff[i / 2 * 2]);
    const float high = fmaf(g[2 * i + 1], sign, diff[i / 2 * 2 + 1]);
    p[i] = multiply<T>(p[i], pack<T>(low, high));
  }
}

/// Stores a fragment into ds [keys, queries] in shared memory. `smem`: the lane's swizzled address
/// for the first 16 queries.
__device__ inline void store_ds(uint32_t smem, const uint32_t (&x)[16]) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    ptx::store_matrix_x4(smem ^ (t << 5), x[4 * t], x[4 * t + 1], x[4 * t + 2], x[4 * t + 3]);
  }
}

/// The wgmma products of one warpgroup; each function commits one group. `base` is the address of
/// shared memory in units of 16 bytes.
template <class T, class C>
struct BackwardProducts {
  using Mma = ptx::Wgmma<T, 64>;
  static constexpr ptx::Major kK = ptx::Major::kK, kMn = ptx::Major::kMn;
  static constexpr uint32_t kHalfKeys = 64 * 128 >> 4;  // 64 rows of 128 bytes, in 16 bytes

  /// A constant operand [64, 8] that picks one statistic from the 8 bf16 of a row: all its rows
  /// have ones in columns 0-2, 3-5 or 6-7. Shared memory holds 8 of the 64 rows; the descriptor's
  /// group stride of 0 repeats them.
  enum Pick : uint32_t { kLse1 = 0, kLse2 = 1, kDelta1 = 2 };

  __device__ static void store_picks(uint32_t smem, int thread) {
    constexpr uint32_t kOne = 0x3f80u, kTwo = 0x3f803f80u;
    if (thread >= 24) return;
    const uint4 value = thread < 8    ? uint4{kTwo, kOne, 0, 0}
                        : thread < 16 ? uint4{0, kOne << 16, kTwo, 0}
                                      : uint4{0, 0, 0, kTwo};
    ptx::store_smem_uint4(smem + C::kPickAt + thread * 16, value);
  }

  __device__ static uint32_t stage_at(uint32_t base, uint32_t stage) {
    return base + (C::kStageAt >> 4) + stage * (C::kStageBytes >> 4);
  }

  /// Sets d [64 keys, 64 queries] to the picked statistic of each query, the same for all keys.
  __device__ static void put_stat(float (&d)[32], Pick pick, uint32_t base, uint32_t stage) {
    ptx::Wgmma<bfloat16, 64>::ss<false, kK, kK>(
        d, ptx::eight_deep_descriptor(base + ((C::kPickAt + pick * C::kPickBytes) >> 4), 0),
        ptx::eight_deep_descriptor(base + (C::kStatAt >> 4) + stage * (kStatBytes >> 4), 128));
  }

  __device__ static void issue_s1(float (&s)[32], uint32_t base, int w, uint32_t stage) {
    issue_s(s, kLse1, base, base + (C::kKAt >> 4) + w * kHalfKeys, stage_at(base, stage), stage);
  }
  __device__ static void issue_s2(float (&s)[32], uint32_t base, int w, uint32_t stage) {
    issue_s(s, kLse2, base, base + ((C::kKAt + C::kKBytes) >> 4) + w * kHalfKeys,
            stage_at(base, stage) + (C::kQBytes >> 4), stage);
  }
  /// Issues s [64 keys, 64 queries] = k q^T - lse / scale.
  __device__ static void issue_s(float (&s)[32], Pick pick, uint32_t base, uint32_t k, uint32_t q,
                                 uint32_t stage) {
    const uint64_t a = ptx::swizzled_descriptor(k), b = ptx::swizzled_descriptor(q);
    put_stat(s, pick, base, stage);
#pragma unroll
    for (int i = 0; i < 4; ++i) Mma::template ss<true, kK, kK>(s, a + 2 * i, b + 2 * i);
    ptx::wgmma_commit();
  }

  /// Issues dp [64 keys, 64 queries] = v dO^T - delta1.
  __device__ static void issue_dp(float (&dp)[32], uint32_t base, int w, uint32_t stage) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kVAt >> 4) + w * kHalfKeys);
    const uint64_t b = ptx::swizzled_descriptor(stage_at(base, stage) + (2 * C::kQBytes >> 4));
    put_stat(dp, kDelta1, base, stage);
#pragma unroll
    for (int i = 0; i < 4 * C::kValueBlocks; ++i) {
      Mma::template ss<true, kK, kK>(dp, a + 2 * (i % 4) + i / 4 * (C::kVBlockBytes >> 4),
                                     b + 2 * (i % 4) + i / 4 * (C::kDoBlockBytes >> 4));
    }
    ptx::wgmma_commit();
  }

  /// Issues dv [64 keys, Dv] += p dO.
  __device__ static void issue_dv(float (&dv)[C::kValueDim / 2], const uint32_t (&p)[16],
                                  uint32_t base, uint32_t stage) {
    const uint64_t b =
        ptx::swizzled_descriptor(stage_at(base, stage) + (2 * C::kQBytes >> 4), C::kDoBlockBytes);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      ptx::Wgmma<T, C::kValueDim>::template rs<true, kMn>(dv, &p[4 * t], b + 128 * t);
    }
    ptx::wgmma_commit();
  }

  /// Issues dk [64 keys, 64] += ds q for map `map`.
  __device__ static void issue_dk(float (&dk)[32], const uint32_t (&ds)[16], uint32_t base,
                                  uint32_t stage, uint32_t map) {
    const uint64_t b = ptx::swizzled_descriptor(stage_at(base, stage) + map * (C::kQBytes >> 4));
#pragma unroll
    for (int t = 0; t < 4; ++t) Mma::template rs<true, kMn>(dk, &ds[4 * t], b + 128 * t);
    ptx::wgmma_commit();
  }

  /// Issues dq [64 queries, 64] = ds^T k over the tile's 128 keys, for map `map`.
  __device__ static void issue_dq(float (&dq)[32], uint32_t base, int map, uint32_t stage) {
    const uint64_t a =
        ptx::swizzled_descriptor(base + (C::kDsAt >> 4) + (stage * 2 + map) * (C::kDsBytes >> 4));
    const uint64_t b = ptx::swizzled_descriptor(base + (C::kKAt >> 4) + map * (C::kKBytes >> 4));
    Mma::template ss<false, kMn, kMn>(dq, a, b);
#pragma unroll
    for (int i = 1; i < 8; ++i) Mma::template ss<true, kMn, kMn>(dq, a + 128 * i, b + 128 * i);
    ptx::wgmma_commit();
  }

  /// Loads sign (delta1 - delta2) of this thread's queries. The caller issues it before the wait
  /// that precedes the use: such loads queue behind the operand reads of wgmma for hundreds of
  /// cycles.
  __device__ static void load_diff(float (&diff)[16], uint32_t smem, uint32_t stage, int lane) {
    const uint32_t at = smem + C::kStatAt + kStatDiffAt + stage * kStatBytes + lane % 4 * 16;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float4 x = ptx::load_smem_float4(at + t * 64);
      diff[4 * t] = x.x;
      diff[4 * t + 1] = x.y;
      diff[4 * t + 2] = x.z;
      diff[4 * t + 3] = x.w;
    }
  }

  __device__ static float load_sign(uint32_t smem, uint32_t stage) {
    return __int_as_float(ptx::load_smem_int(smem + C::kStatAt + kStatSignAt + stage * kStatBytes));
  }
};

}  // namespace diffattn::cuda::sm90
