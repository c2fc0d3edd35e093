// SPDX-License-Identifier: Apache-2.0
//
// The row pass, the first kernel of the backward. One block of 256 threads handles a unit of 64
// query rows of one head and computes, as backward/rows.cu does:
//
//   dO     = rstd (g - O rstd^2 mean(g * O)),  g = out_scale * weight * dout   [B, M, H, Dv]
//   delta2 = dO.o2,  delta1 = dO.O + lambda delta2                             [B, M, H]
//
// It also writes the unit's statistics for the main kernel (stats.cuh), clears the unit's sums of
// dq, and sums dnorm_weight and dlambda over the unit. kValue / 8 threads share a row, 8 columns
// each. The main kernel cannot handle |lse| above kMaxLse, values that are not finite, or both
// signs of lambda in one unit. In these cases the row pass sets `needs_repair`, and the repair
// kernels recompute all gradients.
#pragma once

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/rest.cuh"
#include "kernels/cuda/sm90/backward/stats.cuh"
#include "kernels/cuda/sm90/backward/tile.cuh"

namespace diffattn::cuda::sm90 {

/// Largest |lse| that the main kernel handles. Up to it, splitting lse into three bf16 loses less
/// than the rounding of lse itself.
inline constexpr float kMaxLse = 1e4f;
/// Replaces lse / scale in rows whose probabilities must be 0. Also bounds |delta| and |lambda|.
inline constexpr float kHuge = 1e30f;

/// U: type of o and o2; T if the forward saved them, float if the backward recomputed them.
template <class T, class U>
struct UnitArguments {
  Shape shape;
  TileNumbers units;
  int unit_count;
  Rows<const T> q1, q2;                  // [B, M, H, D]
  Rows<const T> dout;                    // [B, M, H, Dv]
  Rows<const U> o, o2;                   // [B, M, H, Dv]
  Rows<const int8_t> o_rest, o2_rest;    // [B, M, H, Dv] or null
  Rows<const float> lse1, lse2, lambda;  // [B, M, H]
  HeadEpilogue epilogue;
  float scale, scale2;
  bool keep_dout;  // dO equals dout, so d_o is not written
  Rows<T> d_o;     // [B, M, H, Dv]
  RowState state;
  char* stats;           // [H, unit_count, kStatBytes]
  float* dq_sums;        // [H, unit_count, 2, 64, D]
  int* dq_done;          // [H, unit_count, kDqWriters]
  int* needs_repair;     // flag: the repair kernels must recompute all gradients
  float* dnorm_parts;    // [Dv, H, unit_count] or null
  float* dlambda_parts;  // [H, unit_count]: sums of dlambda over the unit's rows
};

/// 8 neighbouring elements of a row in their storage type, with their rests (rest.cuh).
template <class T>
struct Eight {
  uint4 words = {};
  uint2 rests = {};

  __device__ void load(const T* from, const int8_t* rest) {
    words = *reinterpret_cast<const uint4*>(from);
    if (rest != nullptr) rests = *reinterpret_cast<const uint2*>(rest);
  }
  __device__ void widen_to(float (&x)[8]) const {
    const T* const values = reinterpret_cast<const T*>(&words);
    const int8_t* const bytes = reinterpret_cast<const int8_t*>(&rests);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = with_rest(values[i], bytes[i]);
  }
};
template <>
struct Eight<float> {
  float4 values[2] = {};

  __device__ void load(const float* from, const int8_t*) {
    values[0] = *reinterpret_cast<const float4*>(from);
    values[1] = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ void widen_to(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = reinterpret_cast<const float*>(values)[i];
  }
};

template <class T, class U, int kValue>
struct PrepareUnit {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = kValue / 8;  // threads per row
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static constexpr int kPasses = kUnitRows / kRowsAtOnce;

  const UnitArguments<T, U>& args;
  const int h = static_cast<int>(blockIdx.x) / args.unit_count;
  const int unit = static_cast<int>(blockIdx.x) % args.unit_count;
  const int b = args.units.sequence(unit, args.shape.batch);
  const Sequence seq = args.shape.sequence(b);
  const int m0 = (unit - args.units.first(b)) * kUnitRows;
  const int64_t number = static_cast<int64_t>(h) * args.unit_count + unit;
  const int column = threadIdx.x % kLanes * 8;
  float dweight[8] = {};

  /// A thread's inputs of one row. The thread issues all loads before it uses any of them.
  struct RowInput {
    int row;
    bool exists;
    int64_t l;
    float lse1;
    Eight<T> g;
    Eight<U> o, o2;
  };

  /// dO.O and dO.o2 of the unit's rows, and dO.o2 with the unrounded dO.
  struct Deltas {
    float delta[kUnitRows], delta2[kUnitRows], minus_dlambda[kUnitRows];
  };

  __device__ void run() {
    __shared__ Deltas deltas;
    if (m0 < seq.seq_q) {
      clear_sums();
      const int row = static_cast<int>(threadIdx.x) / kLanes;
      for (int pass = 0; pass < kPasses; ++pass) {
        prepare_row(load(pass * kRowsAtOnce + row), deltas);
      }
      __syncthreads();  // all deltas are written
    }
    if (threadIdx.x < kUnitRows) finish_rows(deltas);
    if (threadIdx.x < 32) sum_dlambda(deltas);
    if (args.dnorm_parts != nullptr) sum_dweight();
  }

  __device__ void clear_sums() const {
    const int count = 2 * kUnitRows * args.shape.head_dim;
    float4* const sums = reinterpret_cast<float4*>(args.dq_sums + number * count);
    for (int i = threadIdx.x; i < count / 4; i += kThreads) {
      sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (threadIdx.x < kDqWriters) args.dq_done[number * kDqWriters + threadIdx.x] = 0;
  }

  /// Returns the sum over the threads of a row, the same bits in all of them.
  __device__ static float row_sum(float x) {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, offset);
    }
    return x;
  }

  __device__ RowInput load(int row) const {
    RowInput input{.row = row, .exists = m0 + row < seq.seq_q};
    input.l = seq.q_begin + (input.exists ? m0 + row : 0);
    const auto rest = [&](const Rows<const int8_t>& rests) {
      return rests.data == nullptr ? nullptr : rests.at(b, input.l, h) + column;
    };
    input.lse1 = *args.lse1.at(b, input.l, h);
    input.g.load(args.dout.at(b, input.l, h) + column, nullptr);
    input.o.load(args.o.at(b, input.l, h) + column, rest(args.o_rest));
    input.o2.load(args.o2.at(b, input.l, h) + column, rest(args.o2_rest));
    return input;
  }

  __device__ void prepare_row(const RowInput& input, Deltas& deltas) {
    const int64_t l = input.l;
    const bool dead = !input.exists || input.lse1 == -INFINITY;
    float g[8] = {}, o[8] = {}, o2[8] = {};
    if (!dead) {
      input.g.widen_to(g);
      input.o.widen_to(o);
      input.o2.widen_to(o2);
    } else if (input.exists) {
      check_dead_row(l);
    }
    const float exact_part = to_d_o(g, o, o2, l, input.exists, dead);
    float delta = 0.0f, delta2 = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      delta = fmaf(g[i], o[i], delta);
      delta2 = fmaf(g[i], o2[i], delta2);
    }
    delta = row_sum(delta);
    delta2 = row_sum(delta2);
    const float minus_dlambda = args.keep_dout ? delta2 : row_sum(exact_part);
    if (column != 0) return;
    deltas.delta[input.row] = delta;
    deltas.delta2[input.row] = delta2;
    deltas.minus_dlambda[input.row] = minus_dlambda;
  }

  /// Replaces g = dout by dO, rounded to T as the main kernel reads it, and stores dO. Returns this
  /// thread's part of dO.o2 with the unrounded dO. Does nothing and returns 0 if keep_dout.
  __device__ float to_d_o(float (&g)[8], const float (&o)[8], const float (&o2)[8], int64_t l,
                          bool exists, bool dead) {
    if (args.keep_dout) return 0.0f;
    float rstd = 1.0f, projection = 0.0f;
    if (args.epilogue.norm) {
      float squares = 0.0f, inner = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        squares = fmaf(o[i], o[i], squares);
        inner = fmaf(g[i] * args.epilogue.gain(column + i), o[i], inner);
      }
      squares = row_sum(squares);
      inner = row_sum(inner);
      if (!dead) rstd = 1.0f / sqrtf(squares / kValue + args.epilogue.eps);
      projection = rstd * rstd * inner / kValue;
    }
    uint32_t words[4];
    float exact_part = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      dweight[i] += args.epilogue.out_scale * g[i] * o[i] * rstd;
      g[i] = rstd * (g[i] * args.epilogue.gain(column + i) - o[i] * projection);
      exact_part = fmaf(g[i], o2[i], exact_part);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<T>(g[2 * i], g[2 * i + 1]);
      const float2 rounded = unpack<T>(words[i]);
      g[2 * i] = rounded.x;
      g[2 * i + 1] = rounded.y;
    }
    if (exists) {
      *reinterpret_cast<uint4*>(args.d_o.at(b, l, h) + column) =
          uint4{words[0], words[1], words[2], words[3]};
    }
    return exact_part;
  }

  /// Requests the repair if a row that sees no key has a q or dout that is not finite: the main
  /// kernel would multiply it by p = 0 or ds = 0, which gives NaN.
  __device__ void check_dead_row(int64_t l) const {
    float zero = 0.0f;
    for (int c = column / 8; c < args.shape.head_dim; c += kLanes) {
      zero += widen(args.q1.at(b, l, h)[c]) * 0.0f + widen(args.q2.at(b, l, h)[c]) * 0.0f;
    }
    for (int i = 0; i < 8 && args.keep_dout; ++i) {
      zero += widen(args.dout.at(b, l, h)[column + i]) * 0.0f;
    }
    if (zero != 0.0f) *args.needs_repair = 1;
  }

  /// Writes the statistics of the rows. The first 64 threads call it, one per row.
  __device__ void finish_rows(const Deltas& deltas) const {
    if (m0 >= seq.seq_q) return;
    const int row = static_cast<int>(threadIdx.x), m = m0 + row;
    const bool exists = m < seq.seq_q;
    const int64_t l = seq.q_begin + (exists ? m : 0);
    const float lse1 = *args.lse1.at(b, l, h), lse2 = *args.lse2.at(b, l, h);
    const bool dead = !exists || lse1 == -INFINITY;
    const float sign = find_sign();
    store_stats(row, l, exists, dead, lse1, lse2, deltas.delta[row], deltas.delta2[row], sign);
    if (exists) *args.state.minus_dlambda.at(b, l, h) = deltas.minus_dlambda[row];
  }

  /// Returns and stores -sign(lambda), the factor of p2' in the unit: -1 if no lambda is negative,
  /// else 1. Requests the repair if the unit has lambdas of both signs.
  __device__ float find_sign() const {
    bool negative = false, positive = false;
#pragma unroll
    for (int i = 0; i < kUnitRows; i += 32) {  // each warp reads all 64 rows
      const int m = m0 + i + static_cast<int>(threadIdx.x) % 32;
      const float lambda = m < seq.seq_q ? *args.lambda.at(b, seq.q_begin + m, h) : 0.0f;
      negative |= __any_sync(0xffffffffu, lambda < 0.0f) != 0;
      positive |= __any_sync(0xffffffffu, lambda > 0.0f) != 0;
    }
    const float sign = negative ? 1.0f : -1.0f;
    if (threadIdx.x == 0) {
      if (negative && positive) *args.needs_repair = 1;
      char* const stats = args.stats + number * kStatBytes;
      *reinterpret_cast<float*>(stats + kStatSignAt) = sign;
    }
    return sign;
  }

  /// Writes the statistics of one row (stats.cuh) and its row state for the repair kernels.
  __device__ void store_stats(int row, int64_t l, bool exists, bool dead, float lse1, float lse2,
                              float delta, float delta2, float sign) const {
    const float lambda = dead ? 0.0f : *args.lambda.at(b, l, h);
    const float delta1 = fmaf(lambda, delta2, delta);
    const float nothing1 = args.scale > 0 ? -kHuge : kHuge;
    const float nothing2 = args.scale2 > 0 ? -kHuge : kHuge;
    union {
      bfloat16 parts[8];
      uint4 words;
    } operand;
    split_bf16<3>(dead ? nothing1 : -0.5f * lse1 / args.scale, operand.parts);
    split_bf16<3>(lambda == 0.0f ? nothing2 : 0.5f * (logf(fabsf(lambda)) - lse2) / args.scale2,
                  operand.parts + 3);
    split_bf16<2>(-0.5f * delta1, operand.parts + 6);
    const float used_delta1 = -2.0f * (widen(operand.parts[6]) + widen(operand.parts[7]));
    char* const stats = args.stats + number * kStatBytes;
    *reinterpret_cast<uint4*>(stats + row * kStatRowBytes) = operand.words;
    reinterpret_cast<float*>(stats + kStatDiffAt)[stat_slot(row)] = sign * (used_delta1 - delta2);
    if (!exists) return;
    const bool fine = fabsf(lse1) < kMaxLse && fabsf(lse2) < kMaxLse &&
                      fabsf(delta1) + fabsf(delta2) < kHuge && fabsf(lambda) < kHuge;
    if (!dead && !fine) *args.needs_repair = 1;
    *args.state.lse1.at(b, l, h) = dead ? INFINITY : lse1 * kLog2E;
    *args.state.lse2.at(b, l, h) = dead ? INFINITY : lse2 * kLog2E;
    *args.state.delta1.at(b, l, h) = delta1;
    *args.state.delta2.at(b, l, h) = delta2;
    *args.state.lambda.at(b, l, h) = lambda;
  }

  /// Sums dlambda over the unit's rows in a fixed order. The first warp calls it.
  __device__ void sum_dlambda(const Deltas& deltas) const {
    float sum = 0.0f;
    if (m0 < seq.seq_q) {
      sum = deltas.minus_dlambda[threadIdx.x] + deltas.minus_dlambda[threadIdx.x + 32];
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x == 0) args.dlambda_parts[number] = -sum;
  }

  /// Sums dnorm_weight over the unit's rows in a fixed order.
  __device__ void sum_dweight() const {
    __shared__ float parts[kRowsAtOnce][kValue];
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[threadIdx.x / kLanes][column + i] = dweight[i];
    __syncthreads();  // all parts are written
    for (int c = threadIdx.x; c < kValue; c += kThreads) {
      float sum = 0.0f;
      for (int r = 0; r < kRowsAtOnce; ++r) sum += parts[r][c];
      args.dnorm_parts[static_cast<int64_t>(c) * args.shape.heads * args.unit_count + number] = sum;
    }
  }
};

template <class T, class U, int kValue>
__global__ void __launch_bounds__(256, 4)
    prepare_units_kernel(const __grid_constant__ UnitArguments<T, U> args) {
  PrepareUnit<T, U, kValue>{args}.run();
}

}  // namespace diffattn::cuda::sm90
