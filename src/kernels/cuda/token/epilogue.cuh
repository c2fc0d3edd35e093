// SPDX-License-Identifier: Apache-2.0
//
// The ends of the products of a generation step: they finish outputs g and g + 4 of a tile.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/token/arguments.cuh"

namespace diffattn::cuda::token {

template <class T>
__device__ inline float widen_or_zero(const T* data, int64_t index) {
  return data == nullptr ? 0.0f : widen(data[index]);
}

/// e^x, as exactly as a model of type T needs it.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (__is_same(T, float)) return expf(x);
  return __expf(x);
}

/// Where a row stands: its position, and its new token in the cache of kv head 0.
template <class T>
struct RowPlace {
  int position;
  T* token;

  RowPlace() = default;
  __device__ RowPlace(const ProductArguments<T>& args, int row) : position(args.positions[row]) {
    const Cache& cache = args.cache;
    const int32_t page =
        cache.table[int64_t{row} * cache.table_stride + position / cache.page_size];
    token = static_cast<T*>(cache.pages) + page * cache.page_stride +
            position % cache.page_size * cache.token_stride;
  }
};

/// Computes 1 / RMS of `rows` rows from row0 on from the sums of squares, or 1 without a norm.
/// kThreads / kRows threads add the parts of a row.
template <int kRows, int kThreads, class T>
__device__ inline void store_row_factors(const ProductArguments<T>& args, int row0, int rows,
                                         float* factors_smem) {
  constexpr int kLanes = kThreads / kRows;
  static_assert(kLanes <= 32);
  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = threadIdx.x % kLanes;
  float sum = 0.0f;
  if (row < rows) {  // all blocks read the same few lines, so rows that do not exist read none
    const float* const from = args.squares + int64_t{row0 + row} * Residual::kMaxParts;
#pragma unroll 4
    for (int part = 4 * lane; part < args.parts; part += 4 * kLanes) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from + part));
      sum += x.x + (part + 1 < args.parts ? x.y : 0.0f);
      sum += (part + 2 < args.parts ? x.z : 0.0f) + (part + 3 < args.parts ? x.w : 0.0f);
    }
  }
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  const float mean = __fdividef(sum, static_cast<float>(args.in));
  const float factor = args.parts == 0 ? 1.0f : rsqrtf(mean + args.eps) * (1.0f / kScaled<T>);
  if (lane == 0 && row < rows) factors_smem[row] = factor;
}

/// The sub-head of a pair (0 or 1) and the pair's index, for sub-head s of `count` pairs.
struct SubHead {
  int pair, side;
  __device__ SubHead(int s, int count, bool halves)
      : pair(halves ? s % count : s / 2), side(halves ? s / count : s % 2) {}
};

template <Epilogues kValue>
struct Constant {
  static constexpr Epilogues value = kValue;
};

/// The inputs of a pair of outputs that differ from row to row.
template <class T>
struct RowInputs {
  float c = 1.0f, s = 0.0f;    // kHeads: the rotation
  T* head = nullptr;           // kHeads: the row's first query or its new token
  float x0 = 0.0f, x1 = 0.0f;  // kAdd: the residual stream
};

/// Finishes outputs `pair` and `pair + 4` of a tile in one thread, for any row. All its members are
/// known before the previous kernel has ended. `epilogue` is args.epilogue; functions in which it
/// is a constant contain no code of the others.
template <class T>
struct PairFinish {
  int r0, r1;   // rows of the matrix
  int segment;  // of the projections: 0 = q, 1 = k, 2 = v, 3 = lambda
  float bias0, bias1;
  float norm0, norm1;  // kAdd: weights of the next norm
  // kHeads:
  int64_t to0 = 0, to1 = 0;  // where they go, from the row's first query or its new token on
  int angle = -1;            // of the rotation; -1: none
  int copies = 1;            // of a query sub-head, head_dim elements apart

  __device__ PairFinish(const ProductArguments<T>& args, Epilogues epilogue, int tile, int pair)
      : segment(args.segment_of(tile)) {
    const Segment<T>& from = args.segments[segment];
    const bool two = from.tile_rows == TileRows::kTwoMatrices;
    r0 = args.row_in_matrix(from, tile - from.first_tile, pair);
    r1 = args.row_in_matrix(from, tile - from.first_tile, pair + 4);
    bias0 = widen_or_zero(from.bias, min(r0, from.rows - 1));
    bias1 = widen_or_zero(two ? from.second_bias : from.bias, min(r1, from.rows - 1));
    if (epilogue == Epilogues::kHeads && segment < 3) place_heads(args);
    if (epilogue == Epilogues::kAdd) {
      norm0 = widen(args.next_norm[r0]) * kScaled<T>;
      norm1 = widen(args.next_norm[r1]) * kScaled<T>;
    }
  }

  __device__ void place_heads(const ProductArguments<T>& args) {
    const Projection& p = args.projection;
    if (segment == 2) {
      to0 = value_offset(args, r0);
      to1 = value_offset(args, r1);
      return;
    }
    const int sub_head = r0 / p.head_dim, first = r0 % p.head_dim, second = r1 % p.head_dim;
    if (first < p.rotary_width) angle = p.interleaved ? first / 2 : first;
    int64_t head = 0;
    if (segment == 0) {
      head = p.q_slots[2 * sub_head] * p.head_dim;
      copies = p.q_slots[2 * sub_head + 1];
    } else {
      const bool pairs = p.key_heads != p.kv_heads;
      const SubHead at(sub_head, p.kv_heads, p.halves);
      head = (pairs ? at.pair : sub_head) * args.cache.head_stride +
             (pairs ? at.side * p.head_dim : 0);
    }
    to0 = head + first;
    to1 = head + second;
  }

  __device__ static int64_t value_offset(const ProductArguments<T>& args, int r) {
    const Projection& p = args.projection;
    const int keys = p.key_heads / p.kv_heads * p.head_dim;  // v lies behind the keys
    int head = r / p.value_dim, column = r % p.value_dim;
    if (p.halves && p.value_dim == 2 * p.head_dim) {
      const SubHead at(r / p.head_dim, p.kv_heads, true);
      head = at.pair;
      column = at.side * p.head_dim + r % p.head_dim;
    }
    return head * args.cache.head_stride + keys + column;
  }

  /// Loads what is known of a row before the previous kernel has ended.
  __device__ void load_early(RowInputs<T>& in, const ProductArguments<T>& args, Epilogues epilogue,
                             int row, const RowPlace<T>& place) const {
    if (epilogue != Epilogues::kHeads) return;
    const Projection& p = args.projection;
    in.head = segment == 0 ? static_cast<T*>(p.q_out) + int64_t{row} * p.q_width : place.token;
    if (angle < 0) return;
    const int64_t at = int64_t{place.position} * (p.rotary_width / 2) + angle;
    in.c = p.cos[at];
    in.s = p.sin[at];
  }

  /// Loads what the previous kernel wrote.
  __device__ void load_late(RowInputs<T>& in, const ProductArguments<T>& args, Epilogues epilogue,
                            int row) const {
    if (epilogue != Epilogues::kAdd) return;
    in.x0 = __ldcg(args.residual.x + int64_t{row} * args.residual.width + r0);
    in.x1 = __ldcg(args.residual.x + int64_t{row} * args.residual.width + r1);
  }

  /// Finishes products y0 and y1. Returns the sum of the squares of x for kAdd.
  __device__ float store(const ProductArguments<T>& args, Epilogues epilogue, int row,
                         const RowInputs<T>& in, float y0, float y1) const {
    y0 += bias0;
    y1 += bias1;
    switch (epilogue) {
      case Epilogues::kHeads: store_heads(args, row, in, y0, y1); return 0.0f;
      case Epilogues::kGate:
        static_cast<T*>(args.out)[int64_t{row} * args.out_width + r0] =
            narrow<T>(__fdividef(y0, 1.0f + exponential<T>(-y0)) * y1);
        return 0.0f;
      case Epilogues::kLogits: {
        float* const to = static_cast<float*>(args.out) + int64_t{row} * args.out_width;
        if (r0 < args.out_width) to[r0] = y0;
        if (r1 < args.out_width) to[r1] = y1;
        return 0.0f;
      }
      case Epilogues::kAdd: break;
    }
    const float x0 = in.x0 + y0, x1 = in.x1 + y1;
    const int64_t at = int64_t{row} * args.residual.width;
    args.residual.x[at + r0] = x0;
    args.residual.x[at + r1] = x1;
    T* const scaled = static_cast<T*>(args.residual.scaled) + at;
    scaled[r0] = narrow<T>(x0 * norm0);
    scaled[r1] = narrow<T>(x1 * norm1);
    return x0 * x0 + x1 * x1;
  }

  __device__ void store_heads(const ProductArguments<T>& args, int row, const RowInputs<T>& in,
                              float y0, float y1) const {
    const Projection& p = args.projection;
    if (segment == 3) {
      float* const to = p.lambda_out + int64_t{row} * p.lambda.rows;
      if (r0 < p.lambda.rows) to[r0] = p.lambda_factor / (1.0f + exponential<T>(-y0));
      if (r1 < p.lambda.rows) to[r1] = p.lambda_factor / (1.0f + exponential<T>(-y1));
      return;
    }
    for (int i = 0; i < copies; ++i) {
      in.head[to0 + i * p.head_dim] = narrow<T>(y0 * in.c - y1 * in.s);
      in.head[to1 + i * p.head_dim] = narrow<T>(y1 * in.c + y0 * in.s);
    }
  }
};

/// Calls run with the epilogue as a constant.
template <class Run>
__device__ inline void with_epilogue(Epilogues epilogue, const Run& run) {
  switch (epilogue) {
    case Epilogues::kHeads: return run(Constant<Epilogues::kHeads>());
    case Epilogues::kAdd: return run(Constant<Epilogues::kAdd>());
    case Epilogues::kGate: return run(Constant<Epilogues::kGate>());
    case Epilogues::kLogits: return run(Constant<Epilogues::kLogits>());
  }
}

}  // namespace diffattn::cuda::token
