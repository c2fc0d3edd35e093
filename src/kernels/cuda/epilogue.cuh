// SPDX-License-Identifier: Apache-2.0
//
// Epilogue of the forward kernels, for a row O [Dv]:
//
//   out = out_scale * weight * O * rstd     elementwise; weight = 1 and rstd = 1 without norm
//   rstd = 1 / sqrt(mean(O^2) + eps)
//
// All arithmetic is in float; only the store rounds to T. `finish_row` uses one warp per row.
#pragma once

#include "diffattn/kernels/params.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/rest.cuh"

namespace diffattn::cuda {

inline constexpr int kWarpSize = 32;

struct HeadEpilogue {
  bool norm;
  float eps;
  float out_scale;
  const float* weight;  // [Dv] or null

  __device__ float gain(int c) const {
    return norm && weight != nullptr ? out_scale * weight[c] : out_scale;
  }
  /// Returns 1 / sqrt(mean(O^2) + eps) from the sum of squares `squares`, or 1 without norm.
  __device__ float rstd(float squares, int width) const {
    return norm ? 1.0f / sqrtf(squares / width + eps) : 1.0f;
  }
};

inline HeadEpilogue epilogue_of(const Epilogue& epilogue) {
  return {epilogue.norm, static_cast<float>(epilogue.norm_eps),
          static_cast<float>(epilogue.out_scale), static_cast<const float*>(epilogue.norm_weight)};
}

/// Returns the sum over the warp. The butterfly exchange gives every lane the same bits.
__device__ inline float warp_sum(float x) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

/// Destinations of one row O [Dv]. A null pointer means that the caller does not want that copy.
template <class T>
struct SavedRow {
  T* o;          // O rounded to T
  int8_t* rest;  // rounding error of `o`, see rest.cuh
  float* exact;  // O in float

  /// Stores columns c and c + 1 with one 4-byte store to `o` and one 2-byte store to `rest`, which
  /// must be aligned accordingly (c is even). Ignores `exact`.
  __device__ void store_pair(int c, float x, float y) const {
    *reinterpret_cast<uint32_t*>(o + c) = pack<T>(x, y);
    if (rest != nullptr) {
      *reinterpret_cast<uint16_t*>(rest + c) = static_cast<uint16_t>(
          (rest_of(x, narrow<T>(x)) & 0xff) | (rest_of(y, narrow<T>(y)) & 0xff) << 8);
    }
  }
  __device__ void store(int c, float x) const {
    if (o != nullptr) o[c] = narrow<T>(x);
    if constexpr (sizeof(T) == 2) {
      if (rest != nullptr) rest[c] = static_cast<int8_t>(rest_of(x, narrow<T>(x)));
    }
    if (exact != nullptr) exact[c] = x;
  }
};

/// Applies the epilogue to one row O [width] with the calling warp. Stores the result to `out` and
/// O to `saved`. `dead` marks a row that sees no column: its result is 0, even if eps is 0.
template <class T>
__device__ inline void finish_row(const HeadEpilogue& epilogue, const float* row, int width,
                                  bool dead, T* out, const SavedRow<T>& saved) {
  const int lane = threadIdx.x % kWarpSize;
  float rstd = 1.0f;
  if (epilogue.norm) {
    float squares = 0.0f;
    for (int c = lane; c < width; c += kWarpSize) squares += row[c] * row[c];
    rstd = 1.0f / sqrtf(warp_sum(squares) / width + epilogue.eps);
  }
  for (int c = lane; c < width; c += kWarpSize) {
    const float x = row[c];
    saved.store(c, x);
    out[c] = narrow<T>(dead ? 0.0f : x * rstd * epilogue.gain(c));
  }
}

}  // namespace diffattn::cuda
