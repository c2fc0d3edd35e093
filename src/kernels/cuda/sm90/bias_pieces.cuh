// SPDX-License-Identifier: Apache-2.0
//
// What an additive mask adds to the scores that a thread holds (mask_biases.h), in registers.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace diffattn::cuda::sm90 {

/// 16 bytes of a thread's numbers, which are of type B.
template <class B>
struct BiasPiece {
  static constexpr int kNumbers = 16 / sizeof(B);
  uint32_t x[4];

  /// Piece i; from: this lane's first one.
  __device__ __forceinline__ void load(const uint4* from, int i) {
    const uint4 piece = __ldg(from + 32 * i);
    x[0] = piece.x, x[1] = piece.y, x[2] = piece.z, x[3] = piece.w;
  }

  /// Numbers that the compiler widened for one map would stay in registers for the other.
  __device__ __forceinline__ void keep_packed() { ptx::pin(x); }

  /// Numbers 2i and 2i + 1.
  __device__ __forceinline__ float2 pair(int i) const {
    if constexpr (sizeof(B) == 4) {
      return {__uint_as_float(x[2 * i]), __uint_as_float(x[2 * i + 1])};
    } else {
      return unpack<B>(x[i]);
    }
  }
};

/// The 32 numbers of a thread for one tile of 64 columns, where there are no registers for all of
/// them: the next few pieces at a time.
template <class B>
struct BiasStream {
  static constexpr int kPieces = 32 / BiasPiece<B>::kNumbers;
  static constexpr int kAhead = sizeof(B) == 2 ? 2 : 3;  // others make ptxas spill more
  BiasPiece<B> ahead[kAhead];
  const uint4* first;  // this lane's

  /// Asks for the first pieces; may be called again.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i].load(first, i);
  }
  /// Piece i has been used: asks for one that takes its place.
  __device__ __forceinline__ void advance(int i) {
    if (i + kAhead < kPieces) ahead[i % kAhead].load(first, i + kAhead);
  }
};
template <>
struct BiasStream<void> {};

}  // namespace diffattn::cuda::sm90
