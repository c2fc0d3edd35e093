// SPDX-License-Identifier: Apache-2.0
//
// What the passes over rows read and write.
#pragma once

#include "kernels/cuda/backward/row_softmax.cuh"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace diffattn::cuda {

/// U: of o and o2, T as the forward saved them or float as the backward recomputed them.
template <class T, class U>
struct RowsArguments {
  Shape shape;
  Rows<const T> dout;                  // [B, M, H, Dv]
  Rows<const U> o, o2;                 // [B, M, H, Dv]
  Rows<const int8_t> o_rest, o2_rest;  // [B, M, H, Dv] or null
  Rows<const float> lse1, lse2;        // [B, M, H], natural
  Rows<const float> lambda;            // [B, M, H]
  HeadEpilogue epilogue;
  MaskedScores<T> scores;
  Rows<T> d_o;  // [B, M, H, Dv]
  RowState state;
  float* dnorm_parts;  // [kRowBlocks, Dv] or null
  const int* only_if;  // null, or nothing is done where it holds 0
  uint4* sums;         // [sum_chunks] to clear for those who add to it later, or null
  int64_t sum_chunks;
};

}  // namespace diffattn::cuda
