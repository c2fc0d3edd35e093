// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm90/forward/workspace.h"

namespace diffattn::cuda::sm90 {

/// The kernel parameter of all forward kernels of this folder.
template <class T>
struct ForwardArguments {
  CUtensorMap q1, q2, k1, k2, v;
  CUtensorMap out_map, o_map, o2_map;  // boxes of 16 rows
  Shape shape;
  // Without an additive mask the exponent in base 2 is s * scale_log2, with scale_log2 > 0. With
  // one it is (s * scale + bias) * scale_log2, where scale_log2 is 1 for biases in base 2.
  float scale_log2, scale2_log2;
  float scale, scale2;
  bool shared_k;  // k1 and k2 are the same memory: load it once
  bool packed;
  bool plain;  // the outputs are out and lse only, without head norm
  int blocks;  // tiles of kItemRows rows per head; packed: tile indices (`first_tile_index`)
  int heads;   // B H; packed: H
  int heads_in_cache;  // heads whose items run together, so that their k and v stay in L2
  ForwardState state;
  RowWords words;            // boolean mask
  MaskBiases biases;         // additive mask
  Rows<const float> lambda;  // [B, M, H]
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;            // [B, M, H, Dv]
  Rows<int8_t> o_rest, o2_rest;  // [B, M, H, Dv]
  Rows<float> lse1, lse2;        // [B, M, H]
};

/// Returns the index of packed sequence b's first tile of `kRows` rows among the tiles of a head.
/// The term b reserves one index per earlier sequence, so that no two tiles share an index. Indices
/// between two sequences may stay unused.
template <int kRows>
__device__ inline int first_tile_index(const int32_t* cu_seqlens, int b) {
  return cu_seqlens[b] / kRows + b;
}

/// Returns the sequence that `tile_index` belongs to, by binary search.
template <int kRows>
__device__ inline int sequence_at(const int32_t* cu_seqlens, int batch, int tile_index) {
  int low = 0, high = batch;  // first_tile_index(low) <= tile_index < first_tile_index(high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_tile_index<kRows>(cu_seqlens, middle) <= tile_index ? low : high) = middle;
  }
  return low;
}

}  // namespace diffattn::cuda::sm90
