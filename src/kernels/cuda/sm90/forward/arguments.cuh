// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm90/forward/workspace.h"

namespace diffattn::cuda::sm90 {

template <class T>
struct ForwardArguments {
  CUtensorMap q1, q2, k1, k2, v;
  CUtensorMap out_map, o_map, o2_map;  // boxes of 16 rows
  Shape shape;
  float scale_log2, scale2_log2;  // positive; under biases what is left to come to base 2, when
  float scale, scale2;            // scores have been multiplied by these
  bool shared_k;                  // k1 and k2 are the same memory: load it once
  bool packed;
  bool plain;           // out is all that is wanted, without a norm
  int blocks;           // of kItemRows rows, per head; packed: places for them
  int heads;            // all of the batch's; packed: of one entry
  int heads_at_a_time;  // worked on together, so that their k and v stay in the second-level cache
  ForwardState state;
  RowWords words;            // under a boolean mask
  MaskBiases biases;         // under an additive one
  Rows<const float> lambda;  // [B, M, H]
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;            // [B, M, H, Dv]
  Rows<int8_t> o_rest, o2_rest;  // [B, M, H, Dv]
  Rows<float> lse1, lse2;        // [B, M, H]
};

/// Where a packed sequence's tiles of `kRows` rows begin among the places of a head: one place more
/// per sequence than its rows need, so that no two tiles share one.
template <int kRows>
__device__ inline int first_place(const int32_t* cu_seqlens, int b) {
  return cu_seqlens[b] / kRows + b;
}

/// The sequence whose tile is at `place`.
template <int kRows>
__device__ inline int sequence_at(const int32_t* cu_seqlens, int batch, int place) {
  int low = 0, high = batch;  // first_place(low) <= place < first_place(high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_place<kRows>(cu_seqlens, middle) <= place ? low : high) = middle;
  }
  return low;
}

}  // namespace diffattn::cuda::sm90
