// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda::sm80 {

/// Kernel arguments of the sm80 forward. Optional outputs have null data.
template <class T>
struct ForwardArguments {
  Shape shape;
  Rows<const T> q1, q2;                  // [B, M, H, D]
  Rows<const T> k1, k2;                  // [B, N, Hkv, D]
  Rows<const T> v;                       // [B, N, Hkv, Dv]
  Rows<const float> lambda;              // [B, M, H]
  float scale_log2, scale2_log2;         // scale log2(e) of map 1 and map 2
  bool q_aligned, k_aligned, v_aligned;  // rows may be read in 16-byte chunks
  bool paired_stores;  // Dv fills the tile, and adjacent outputs may be stored as one word
  bool shared_k;       // k1 and k2 are the same memory; kernel.cuh loads it once
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;             // [B, M, H, Dv]: result, O before the epilogue, softmax2 v
  Rows<int8_t> o_rest, o2_rest;   // [B, M, H, Dv]: rounding errors of o and o2, see rest.cuh
  Rows<float> lse1, lse2;         // [B, M, H]: log-sum-exp, natural logarithm
  Rows<float> o_exact, o2_exact;  // [B, M, H, Dv]: o and o2 in float
};

}  // namespace diffattn::cuda::sm80
