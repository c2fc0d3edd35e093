// SPDX-License-Identifier: Apache-2.0
//
// What the products of a generation step do with outputs g and g + 4 of a tile.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/token/arguments.cuh"

namespace diffattn::cuda::token {

template <class T>
__device__ inline float widen_or_zero(const T* data, int64_t index) {
  return data == nullptr ? 0.0f : widen(data[index]);
}

/// Returns the cached token at the row's position, for one kv head.
template <class T>
__device__ inline T* new_token(const Cache& cache, int row, int position, int kv_head) {
  const int32_t page = cache.table[int64_t{row} * cache.table_stride + position / cache.page_size];
  return static_cast<T*>(cache.pages) + page * cache.page_stride + kv_head * cache.head_stride +
         position % cache.page_size * cache.token_stride;
}

/// The sub-head of a pair (0 or 1) and the pair's index, for sub-head s of `count` pairs.
struct SubHead {
  int pair, side;
  __device__ SubHead(int s, int count, bool halves)
      : pair(halves ? s % count : s / 2), side(halves ? s / count : s % 2) {}
};

/// What one thread does with outputs `pair` and `pair + 4` of a tile for one row. All but `x` is
/// known before the previous kernel has ended: weights, positions, pages and rotary angles.
template <class T>
struct PairFinish {
  int r0, r1;   // rows of the matrix
  int segment;  // of the projections: 0 = q, 1 = k, 2 = v, 3 = lambda
  float bias0, bias1;
  float c = 1.0f, s = 0.0f;  // kHeads: the rotation
  float norm0, norm1;        // kAdd: weights of the next norm
  float x0, x1;              // kAdd: the residual stream
  T *to0 = nullptr, *to1 = nullptr;
  int copies = 1;  // of a query sub-head, head_dim elements apart

  __device__ void prepare(const ProductArguments<T>& args, int row, int tile, int pair) {
    segment = args.segment_of(tile);
    const Segment<T>& from = args.segments[segment];
    const bool two = from.tile_rows == TileRows::kTwoMatrices;
    r0 = args.row_in_matrix(from, tile - from.first_tile, pair);
    r1 = args.row_in_matrix(from, tile - from.first_tile, pair + 4);
    bias0 = widen_or_zero(from.bias, min(r0, from.rows - 1));
    bias1 = widen_or_zero(two ? from.second_bias : from.bias, min(r1, from.rows - 1));
    if (args.epilogue == Epilogues::kHeads && segment < 3) place_heads(args, row);
    if (args.epilogue == Epilogues::kAdd) {
      norm0 = widen(args.next_norm[r0]) * kScaled<T>;
      norm1 = widen(args.next_norm[r1]) * kScaled<T>;
    }
  }

  __device__ void place_heads(const ProductArguments<T>& args, int row) {
    const Projection& p = args.projection;
    const int position = args.positions[row];
    if (segment == 2) {
      to0 = value_at(args, row, position, r0);
      to1 = value_at(args, row, position, r1);
      return;
    }
    const int sub_head = r0 / p.head_dim, first = r0 % p.head_dim, second = r1 % p.head_dim;
    if (first < p.rotary_width) {
      const int angle = p.interleaved ? first / 2 : first;
      const int64_t at = int64_t{position} * (p.rotary_width / 2) + angle;
      c = p.cos[at];
      s = p.sin[at];
    }
    T* head = nullptr;
    if (segment == 0) {
      copies = p.q_slots[2 * sub_head + 1];
      head = static_cast<T*>(p.q_out) + int64_t{row} * p.q_width +
             p.q_slots[2 * sub_head] * p.head_dim;
    } else {
      const bool pairs = p.key_heads != p.kv_heads;
      const SubHead at(sub_head, p.kv_heads, p.halves);
      head = new_token<T>(args.cache, row, position, pairs ? at.pair : sub_head) +
             (pairs ? at.side * p.head_dim : 0);
    }
    to0 = head + first;
    to1 = head + second;
  }

  __device__ static T* value_at(const ProductArguments<T>& args, int row, int position, int r) {
    const Projection& p = args.projection;
    const int keys = p.key_heads / p.kv_heads * p.head_dim;  // v lies behind the keys
    int head = r / p.value_dim, column = r % p.value_dim;
    if (p.halves && p.value_dim == 2 * p.head_dim) {
      const SubHead at(r / p.head_dim, p.kv_heads, true);
      head = at.pair;
      column = at.side * p.head_dim + r % p.head_dim;
    }
    return new_token<T>(args.cache, row, position, head) + keys + column;
  }

  /// Loads what the previous kernel wrote.
  __device__ void load(const ProductArguments<T>& args, int row) {
    if (args.epilogue != Epilogues::kAdd) return;
    x0 = __ldcg(args.residual.x + int64_t{row} * args.residual.width + r0);
    x1 = __ldcg(args.residual.x + int64_t{row} * args.residual.width + r1);
  }

  /// Finishes products y0 and y1. Returns the sum of the squares of x for kAdd.
  __device__ float store(const ProductArguments<T>& args, int row, float y0, float y1) {
    y0 += bias0;
    y1 += bias1;
    switch (args.epilogue) {
      case Epilogues::kHeads: store_heads(args, row, y0, y1); return 0.0f;
      case Epilogues::kGate:
        static_cast<T*>(args.out)[int64_t{row} * args.out_width + r0] =
            narrow<T>(y0 / (1.0f + __expf(-y0)) * y1);
        return 0.0f;
      case Epilogues::kLogits: {
        float* const to = static_cast<float*>(args.out) + int64_t{row} * args.out_width;
        if (r0 < args.out_width) to[r0] = y0;
        if (r1 < args.out_width) to[r1] = y1;
        return 0.0f;
      }
      case Epilogues::kAdd: break;
    }
    x0 += y0;
    x1 += y1;
    const int64_t at = int64_t{row} * args.residual.width;
    args.residual.x[at + r0] = x0;
    args.residual.x[at + r1] = x1;
    T* const scaled = static_cast<T*>(args.residual.scaled) + at;
    scaled[r0] = narrow<T>(x0 * norm0);
    scaled[r1] = narrow<T>(x1 * norm1);
    return x0 * x0 + x1 * x1;
  }

  __device__ void store_heads(const ProductArguments<T>& args, int row, float y0, float y1) {
    const Projection& p = args.projection;
    if (segment == 3) {
      float* const to = p.lambda_out + int64_t{row} * p.lambda.rows;
      if (r0 < p.lambda.rows) to[r0] = p.lambda_factor / (1.0f + __expf(-y0));
      if (r1 < p.lambda.rows) to[r1] = p.lambda_factor / (1.0f + __expf(-y1));
      return;
    }
    for (int i = 0; i < copies; ++i) {
      to0[i * p.head_dim] = narrow<T>(y0 * c - y1 * s);
      to1[i * p.head_dim] = narrow<T>(y1 * c + y0 * s);
    }
  }
};

}  // namespace diffattn::cuda::token
