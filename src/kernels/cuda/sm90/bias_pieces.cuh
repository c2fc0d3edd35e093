// SPDX-License-Identifier: Apache-2.0
//
// Reads the values that an additive mask adds to a thread's scores (mask_biases.h) into registers.
// A "bias" is one such value, a "piece" is 16 bytes of them.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace diffattn::cuda::sm90 {

/// 16 bytes of a thread's biases, which have type B.
template <class B>
struct BiasPiece {
  static constexpr int kNumbers = 16 / sizeof(B);
  uint32_t x[4];

  /// Loads piece i of a thread; `from` points to the lane's piece 0.
  __device__ __forceinline__ void load(const uint4* from, int i) {
    const uint4 piece = __ldg(from + 32 * i);
    x[0] = piece.x, x[1] = piece.y, x[2] = piece.z, x[3] = piece.w;
  }

  /// Keeps the compiler from converting to float once and holding the floats in registers for the
  /// second map.
  __device__ __forceinline__ void keep_packed() { ptx::pin(x); }

  /// Returns biases 2i and 2i + 1 of the piece.
  __device__ __forceinline__ float2 pair(int i) const {
    if constexpr (sizeof(B) == 4) {
      return {__uint_as_float(x[2 * i]), __uint_as_float(x[2 * i + 1])};
    } else {
      return unpack<B>(x[i]);
    }
  }
};

/// Streams a thread's 32 biases of a tile with 64 columns. The backward has no registers for all of
/// them, so only the next kAhead pieces are loaded at a time.
template <class B>
struct BiasStream {
  static constexpr int kPieces = 32 / BiasPiece<B>::kNumbers;
  static constexpr int kAhead = sizeof(B) == 2 ? 2 : 3;  // other values spill more registers
  BiasPiece<B> ahead[kAhead];
  const uint4* first;  // the lane's piece 0

  /// Starts the loads of the first pieces. The second map calls it again.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i].load(first, i);
  }
  /// Starts the load that replaces piece i, whose values have been used.
  __device__ __forceinline__ void advance(int i) {
    if (i + kAhead < kPieces) ahead[i % kAhead].load(first, i + kAhead);
  }
};
template <>
struct BiasStream<void> {};

}  // namespace diffattn::cuda::sm90
