// SPDX-License-Identifier: Apache-2.0
//
// What a warp knows of its 16 rows, both maps, and how it becomes the result.
#pragma once

#include <cmath>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/forward/arguments.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

/// Softmax state in base 2: a thread keeps rows g and g + 8. l is the thread's own part until
/// `finish`, o [16, kDv] not yet divided by it.
template <int kDv>
struct PairState {
  float o[2][kDv / 8][4];
  float m[2][2], l[2][2];  // [map][row]
  bool fresh;              // some row of the warp has no m yet

  /// Rows from `rows` on do not exist and need none.
  __device__ void reset(int row0, int rows) {
    fresh = true;
    for (int map = 0; map < 2; ++map) {
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + threadIdx.x % kWarpSize / 4 + r * 8;
        m[map][r] = row < rows ? -INFINITY : 0.0f;
        l[map][r] = 0.0f;
      }
      for (int j = 0; j < kDv / 8; ++j) {
        for (int e = 0; e < 4; ++e) o[map][j][e] = 0.0f;
      }
    }
  }

  /// Moves m to the maximum of scores, base 2 once multiplied by the factors > 0, where some row of
  /// the warp has outgrown its m by kSlack: until then p stays below 2^kSlack, which float sums and
  /// 16-bit operands hold as exactly as p below 1.
  template <int kN8>
  __device__ void raise(const float (&s)[2][kN8][4], float factor1, float factor2) {
    constexpr float kSlack = 8.0f;
    float top[2][2];
    bool outgrown = false;
#pragma unroll
    for (int map = 0; map < 2; ++map) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = -INFINITY;
#pragma unroll
        for (int j = 0; j < kN8; ++j) {
          best = fmaxf(best, fmaxf(s[map][j][2 * r], s[map][j][2 * r + 1]));
        }
        top[map][r] = best * (map == 0 ? factor1 : factor2);
        outgrown |= top[map][r] > m[map][r] + kSlack;
      }
    }
    if (!__any_sync(0xffffffffu, outgrown)) return;
    rescale(top);
    bool none = false;
    for (int r = 0; r < 2; ++r) none |= m[0][r] == -INFINITY || m[1][r] == -INFINITY;
    fresh = __any_sync(0xffffffffu, none) != 0;
  }

  /// Moves m by as much as sums of p have grown.
  __device__ void outgrow(const float (&sum)[2][2]) {
    float top[2][2];
#pragma unroll
    for (int map = 0; map < 2; ++map) {
#pragma unroll
      for (int r = 0; r < 2; ++r) top[map][r] = m[map][r] + log2f(fmaxf(sum[map][r], 1.0f));
    }
    rescale(top);
  }

  /// Completes l over the quad.
  __device__ void finish() {
#pragma unroll
    for (int map = 0; map < 2; ++map) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        l[map][r] += __shfl_xor_sync(0xffffffffu, l[map][r], 1);
        l[map][r] += __shfl_xor_sync(0xffffffffu, l[map][r], 2);
      }
    }
  }

  /// While a row has seen nothing its m is -inf: -inf - (-inf) would be NaN.
  __device__ static float finite_or_zero(float x) { return x == -INFINITY ? 0.0f : x; }

 private:
  /// m becomes the larger of itself and the quad's largest `top`.
  __device__ void rescale(const float (&top)[2][2]) {
#pragma unroll
    for (int map = 0; map < 2; ++map) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = top[map][r];
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        const float m_new = fmaxf(m[map][r], best);
        const float factor = ptx::exp2(m[map][r] - finite_or_zero(m_new));
        m[map][r] = m_new;
        l[map][r] *= factor;
#pragma unroll
        for (int j = 0; j < kDv / 8; ++j) {
          o[map][j][2 * r] *= factor;
          o[map][j][2 * r + 1] *= factor;
        }
      }
    }
  }
};

/// The end of a block's work, each warp for its own rows, through o_smem [kBlockM, kOPitch]:
/// lse = m ln 2 + log l;  o2 = o / l of map 2;  O = o1 / l1 - lambda o2;  out = epilogue(O).
template <class T, class Config>
struct FinishPair {
  const ForwardArguments<T>& args;
  float* o_smem;
  const BlockPlace place;
  const Sequence& seq;
  PairState<Config::kValueDim>& state;
  const int row0 = place.tile * Config::kBlockM;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = threadIdx.x / kWarpSize * 16;
  const int end_row = min(warp_row + 16, seq.seq_q - row0);  // of the warp's, within the block

  __device__ void run() {
    state.finish();
    if (args.o2.data != nullptr || args.o2_exact.data != nullptr) {
      share([](float, float o2, float) { return o2; });
      for (int r = warp_row; r < end_row; ++r) {
        const auto saved = saved_row(r, args.o2, args.o2_rest, args.o2_exact);
        for (int c = lane; c < args.shape.value_dim; c += kWarpSize) {
          saved.store(c, o_smem[r * Config::kOPitch + c]);
        }
      }
      __syncwarp();  // o2 was stored: O may overwrite it
    }
    share([](float o1, float o2, float lambda) { return o1 - lambda * o2; });
    store_statistics();
    for (int r = warp_row; r < end_row; ++r) {
      const float l1 = __shfl_sync(0xffffffffu, r & 8 ? state.l[0][1] : state.l[0][0], r % 8 * 4);
      finish_row(args.epilogue, o_smem + r * Config::kOPitch, args.shape.value_dim, l1 == 0.0f,
                 args.out.at(place.b, seq.q_begin + row0 + r, place.h),
                 saved_row(r, args.o, args.o_rest, args.o_exact));
    }
  }

  __device__ SavedRow<T> saved_row(int r, const Rows<T>& o, const Rows<int8_t>& rest,
                                   const Rows<float>& exact) const {
    const int64_t at = seq.q_begin + row0 + r;
    return {o.at_or_null(place.b, at, place.h), rest.at_or_null(place.b, at, place.h),
            exact.at_or_null(place.b, at, place.h)};
  }

  __device__ void store_statistics() const {
    if (args.lse1.data == nullptr || lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + warp_row + r * 8 + lane / 4;
      if (row >= seq.seq_q) continue;
      *args.lse1.at(place.b, seq.q_begin + row, place.h) =
          state.m[0][r] * kLn2 + logf(state.l[0][r]);
      *args.lse2.at(place.b, seq.q_begin + row, place.h) =
          state.m[1][r] * kLn2 + logf(state.l[1][r]);
    }
  }

  /// o_smem = body(o1 / l1, o2 / l2, lambda), seen by the warp.
  template <class Body>
  __device__ void share(Body body) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + r * 8 + lane / 4;
      const bool dead = state.l[0][r] == 0.0f;
      const float inverse1 = dead ? 0.0f : 1.0f / state.l[0][r];
      const float inverse2 = dead ? 0.0f : 1.0f / state.l[1][r];
      float lambda = 0.0f;  // of a row that sees nothing, so that an infinite one is not used
      if (!dead && row0 + row < seq.seq_q) {
        lambda = *args.lambda.at(place.b, seq.q_begin + row0 + row, place.h);
      }
#pragma unroll
      for (int j = 0; j < Config::kValueDim / 8; ++j) {
        float* const to = o_smem + row * Config::kOPitch + j * 8 + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          to[e] = body(state.o[0][j][2 * r + e] * inverse1, state.o[1][j][2 * r + e] * inverse2,
                       lambda);
        }
      }
    }
    __syncwarp();  // the rows are there
  }
};

template <class T, class Config>
__device__ void finish_pair(const ForwardArguments<T>& args, char* smem, const BlockPlace& place,
                            const Sequence& seq, PairState<Config::kValueDim>& state) {
  FinishPair<T, Config>{args, reinterpret_cast<float*>(smem), place, seq, state}.run();
}

}  // namespace diffattn::cuda::sm80
