// SPDX-License-Identifier: Apache-2.0
//
// The last step of every forward kernel, one warp per row:
//
//   out = out_scale * weight o O * rstd,   rstd = 1 / sqrt(mean(O^2) + eps)   (1 without norm)
//
// in float, with one rounding at the store.
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
  /// 1 / sqrt(mean(O^2) + eps) from the sum of squares; 1 without norm.
  __device__ float rstd(float squares, int width) const {
    return norm ? 1.0f / sqrtf(squares / width + eps) : 1.0f;
  }
};

inline HeadEpilogue epilogue_of(const Epilogue& epilogue) {
  return {epilogue.norm, static_cast<float>(epilogue.norm_eps),
          static_cast<float>(epilogue.out_scale), static_cast<const float*>(epilogue.norm_weight)};
}

/// Sum over the warp; every lane gets the same bits, since the exchange pattern is symmetric.
__device__ inline float warp_sum(float x) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

/// Where one row O [width] goes: rounded, what that lost, and not rounded. Null where not wanted.
template <class T>
struct SavedRow {
  T* o;
  int8_t* rest;
  float* exact;

  /// Columns c and c + 1, c even, as one word each: o 4-byte, rest 2-byte aligned, no `exact`.
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

/// Finishes one row O [width] and stores it to `out`, and O itself to `saved`. A row that sees
/// nothing (`dead`) is 0 whatever eps is.
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
