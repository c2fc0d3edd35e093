// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the row pass (rows.cu and whole_rows.cuh).
#pragma once

#include "kernels/cuda/backward/row_softmax.cuh"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace diffattn::cuda {

/// U is the element type of o and o2: T if the forward saved them, float if the backward recomputed
/// them.
template <class T, class U>
struct RowsArguments {
  Shape shape;
  Rows<const T> dout;                  // [B, M, H, Dv]
  Rows<const U> o, o2;                 // [B, M, H, Dv]
  Rows<const int8_t> o_rest, o2_rest;  // [B, M, H, Dv] or null
  Rows<const float> lse1, lse2;        // [B, M, H], natural logarithm
  Rows<const float> lambda;            // [B, M, H]
  HeadEpilogue epilogue;
  MaskedScores<T> scores;
  Rows<T> d_o;  // [B, M, H, Dv]
  RowState state;
  Rows<float> ds_factors;  // [B, M, H] or null, see RowFactors::ds
  float* dnorm_parts;      // [kRowBlocks, Dv] or null
  const int* only_if;      // if not null and *only_if is 0, the kernel does nothing
  uint4* sums;             // [sum_chunks]: sums of dq to zero, or null
  int64_t sum_chunks;
};

}  // namespace diffattn::cuda
