// SPDX-License-Identifier: Apache-2.0
//
// State and epilogue of the forward in pair.cuh: PairState holds one map's m, l and o for the 32
// rows of a warp; FinishPair combines the states of both maps into the result.
#pragma once

#include <cmath>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/quad_reduce.cuh"
#include "kernels/cuda/sm80/forward/arguments.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

/// Softmax state of a warp's 32 rows, with exponents in base 2. A thread holds rows g and g + 8 of
/// both 16-row fragments, g = lane / 4.
template <int kDv>
struct PairState {
  float o[2][kDv / 8][4];  // [32, kDv], not yet divided by l
  // m: approximate row maxima. l: row sums; until `finish`, over this thread's columns only.
  float m[2][2], l[2][2];
  bool lacks_max;  // some row of the warp has no m yet

  /// Initialises the state of rows [row0, row0 + 32). Rows from index `rows` on do not exist; they
  /// get m = 0, so that they do not set lacks_max.
  __device__ void reset(int row0, int rows) {
    lacks_max = true;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + i * 16 + threadIdx.x % kWarpSize / 4 + r * 8;
        m[i][r] = row < rows ? -INFINITY : 0.0f;
        l[i][r] = 0.0f;
      }
      for (int j = 0; j < kDv / 8; ++j) {
        for (int e = 0; e < 4; ++e) o[i][j][e] = 0.0f;
      }
    }
  }

  /// Raises m to the maximum of the scores, and rescales l and o, if some row of the warp exceeds
  /// its m by more than kSlack. `factor` > 0 converts scores to base-2 exponents. Without a rescale
  /// p <= 2^kSlack, which float and 16-bit types represent with the same relative precision as
  /// p <= 1.
  template <int kN8>
  __device__ void raise(const Accumulator<2, kN8>& s, float factor) {
    constexpr float kSlack = 8.0f;
    float top[2][2];
    bool over_slack = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float best = -INFINITY;
#pragma unroll
        for (int j = 0; j < kN8; ++j) {
          best = fmaxf(best, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
        }
        top[i][r] = best * factor;
        over_slack |= top[i][r] > m[i][r] + kSlack;
      }
    }
    if (!__any_sync(0xffffffffu, over_slack)) return;
    rescale(top);
    bool none = false;
    for (int r = 0; r < 2; ++r) none |= m[0][r] == -INFINITY || m[1][r] == -INFINITY;
    lacks_max = __any_sync(0xffffffffu, none) != 0;
  }

  /// Raises m by log2 of the largest `sum` of the row's four threads, and rescales l and o. `sum`:
  /// p summed over this thread's columns of one tile.
  __device__ void raise_by_sums(const float (&sum)[2][2]) {
    float top[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) top[i][r] = m[i][r] + log2f(fmaxf(sum[i][r], 1.0f));
    }
    rescale(top);
  }

  /// True if every o of this thread is finite.
  __device__ bool finite() const {
    float zero = 0.0f;  // becomes NaN at the first infinity or NaN
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) zero = fmaf(o[i][j][e], 0.0f, zero);
      }
    }
    return zero == 0.0f;
  }

  /// Sums l over the quad, so that each lane has the whole row's l.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) l[i][r] = quad_sum(l[i][r]);
    }
  }

  /// Replaces -inf by 0. A row that has seen no column has m = -inf, and -inf - (-inf) is NaN.
  __device__ static float finite_or_zero(float x) { return x == -INFINITY ? 0.0f : x; }

 private:
  /// Sets m to the maximum of m and of the quad's `top`, and rescales l and o.
  __device__ void rescale(const float (&top)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float m_new = fmaxf(m[i][r], quad_max(top[i][r]));
        const float factor = ptx::exp2(m[i][r] - finite_or_zero(m_new));
        m[i][r] = m_new;
        l[i][r] *= factor;
#pragma unroll
        for (int j = 0; j < kDv / 8; ++j) {
          o[i][j][2 * r] *= factor;
          o[i][j][2 * r + 1] *= factor;
        }
      }
    }
  }
};

/// Combines the two maps and stores the results:
///
///   lse = m ln 2 + log l;  o2 = o / l of map 2;  O = o1 / l1 - lambda o2;  out = epilogue(O)
///
/// A warp of map 1 and a warp of map 2 hold the same 32 rows. They exchange half of their o through
/// shared memory: the warp of map 1 finishes rows 0-15, the warp of map 2 rows 16-31.
template <class T, class Config>
struct FinishPair {
  static constexpr int kDv = Config::kValueDim;
  using Half = float[kDv / 8][4];  // o of 16 rows

  const ForwardArguments<T>& args;
  char* smem;  // o [warps, kDv / 8, 32 lanes, 4], then l [2, kBlockM]
  const WorkTile work;
  const Sequence& seq;
  PairState<kDv>& state;
  const int row0 = work.tile * Config::kBlockM;
  const int lane = threadIdx.x % kWarpSize;
  const int map = threadIdx.x / (Config::kThreads / 2);
  const int pair = threadIdx.x % (Config::kThreads / 2) / kWarpSize;

  __device__ float4* o_smem(int of_map) const {
    return reinterpret_cast<float4*>(smem) +
           (of_map * Config::kWarps / 2 + pair) * (kDv / 8) * kWarpSize + lane;
  }
  __device__ float* l_smem(int of_map) const {
    return reinterpret_cast<float*>(smem + 4 * Config::kBlockM * kDv) + of_map * Config::kBlockM;
  }

  __device__ void run() {
    state.finish();
    store_statistics();
    if (map == 0) {
      send(state.o[1]);
    } else {
      send(state.o[0]);
    }
    __syncthreads();  // each warp has sent its half to its partner
    Half other;
#pragma unroll
    for (int j = 0; j < kDv / 8; ++j) {
      const float4 x = o_smem(1 - map)[j * kWarpSize];
      other[j][0] = x.x, other[j][1] = x.y, other[j][2] = x.z, other[j][3] = x.w;
    }
    if (map == 0) {
      finish(state.o[0], other);
    } else {
      finish(other, state.o[1]);
    }
  }

  __device__ void send(const Half& o) const {
#pragma unroll
    for (int j = 0; j < kDv / 8; ++j) {
      o_smem(map)[j * kWarpSize] = make_float4(o[j][0], o[j][1], o[j][2], o[j][3]);
    }
  }

  /// Stores l to shared memory, and lse to global memory if the caller wants it.
  __device__ void store_statistics() const {
    if (lane % 4 != 0) return;
    const Rows<float>& lse = map == 0 ? args.lse1 : args.lse2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = pair * 32 + i * 16 + r * 8 + lane / 4;
        l_smem(map)[row] = state.l[i][r];
        if (lse.data == nullptr || row0 + row >= seq.seq_q) continue;
        *lse.at(work.b, seq.q_begin + row0 + row, work.h) =
            state.m[i][r] * kLn2 + logf(state.l[i][r]);
      }
    }
  }

  __device__ void finish(Half& o1, Half& o2) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = pair * 32 + map * 16 + r * 8 + lane / 4;
      const int64_t at = seq.q_begin + row0 + row;
      const bool exists = row0 + row < seq.seq_q;
      const float l1 = l_smem(0)[row], l2 = l_smem(1)[row];
      const bool dead = l1 == 0.0f;
      const float inverse1 = dead ? 0.0f : 1.0f / l1, inverse2 = dead ? 0.0f : 1.0f / l2;
      // 0 for a row that sees no column, because an infinite lambda would give NaN.
      const float lambda = dead || !exists ? 0.0f : *args.lambda.at(work.b, at, work.h);
      float squares = 0.0f;
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          o2[j][e] *= inverse2;
          o1[j][e] = o1[j][e] * inverse1 - lambda * o2[j][e];
          squares += o1[j][e] * o1[j][e];  // padding columns of v are 0
        }
      }
      const float rstd = args.epilogue.rstd(quad_sum(squares), args.shape.value_dim);
      if (exists && args.paired_stores) store_paired(o1, o2, r, at, dead ? 0.0f : rstd);
      if (!args.paired_stores) store_unaligned(o1, o2, r, dead);
    }
  }

  /// Stores row r of the fragment, two adjacent columns at a time. Requires args.paired_stores.
  __device__ void store_paired(const Half& o1, const Half& o2, int r, int64_t at,
                               float rstd) const {
    const auto store = [&](const SavedRow<T>& row, const Half& o, auto gain) {
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
        const int c = j * 8 + lane % 4 * 2;
        row.store_pair(c, o[j][2 * r] * gain(c), o[j][2 * r + 1] * gain(c + 1));
      }
    };
    const auto one = [](int) { return 1.0f; };
    if (args.o2.data != nullptr) {
      store(saved_row(at, args.o2, args.o2_rest, args.o2_exact), o2, one);
    }
    if (args.o.data != nullptr) store(saved_row(at, args.o, args.o_rest, args.o_exact), o1, one);
    const SavedRow<T> out{args.out.at(work.b, at, work.h), nullptr, nullptr};
    if (args.epilogue.norm && args.epilogue.weight != nullptr) {
      store(out, o1, [&](int c) { return rstd * args.epilogue.gain(c); });
    } else {
      store(out, o1, [&](int) { return rstd * args.epilogue.out_scale; });
    }
  }

  /// Stores rows of any width and alignment. Each warp passes [8, kDv] of o2, then of O, through
  /// shared memory, so that its lanes can store one row at a time.
  __device__ void store_unaligned(const Half& o1, const Half& o2, int r, bool dead) const {
    float* const rows_smem = reinterpret_cast<float*>(smem + 4 * Config::kBlockM * (kDv + 2)) +
                             threadIdx.x / kWarpSize * 2 * 8 * kDv;
    __syncwarp();  // the previous rows have been stored
#pragma unroll
    for (int j = 0; j < kDv / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int to = lane / 4 * kDv + j * 8 + lane % 4 * 2 + e;
        rows_smem[to] = o2[j][2 * r + e];
        rows_smem[8 * kDv + to] = o1[j][2 * r + e];
      }
    }
    __syncwarp();  // the rows are complete
    const unsigned dead_rows = __ballot_sync(0xffffffffu, dead);
#pragma unroll 1
    for (int g = 0; g < 8; ++g) {
      const int row = pair * 32 + map * 16 + r * 8 + g;
      if (row0 + row >= seq.seq_q) break;
      const int64_t at = seq.q_begin + row0 + row;
      const SavedRow<T> saved2 = saved_row(at, args.o2, args.o2_rest, args.o2_exact);
      for (int c = lane; c < args.shape.value_dim; c += kWarpSize) {
        saved2.store(c, rows_smem[g * kDv + c]);
      }
      finish_row(args.epilogue, rows_smem + (8 + g) * kDv, args.shape.value_dim,
                 (dead_rows >> (g * 4) & 1) != 0, args.out.at(work.b, at, work.h),
                 saved_row(at, args.o, args.o_rest, args.o_exact));
    }
  }

  __device__ SavedRow<T> saved_row(int64_t at, const Rows<T>& o, const Rows<int8_t>& rest,
                                   const Rows<float>& exact) const {
    return {o.at_or_null(work.b, at, work.h), rest.at_or_null(work.b, at, work.h),
            exact.at_or_null(work.b, at, work.h)};
  }
};

template <class T, class Config>
__device__ void finish_pair(const ForwardArguments<T>& args, char* smem, const WorkTile& work,
                            const Sequence& seq, PairState<Config::kValueDim>& state) {
  FinishPair<T, Config>{args, smem, work, seq, state}.run();
}

}  // namespace diffattn::cuda::sm80
