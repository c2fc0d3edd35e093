// SPDX-License-Identifier: Apache-2.0
//
// Device-side form of `Problem`: 32-bit sizes, typed tensor rows, and the extent of each sequence.
// Follows kernels/visible.h step by step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {

/// A `View` with addressing on the device; offsets are 64-bit.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t seq_stride = 0;
  int64_t head_stride = 0;

  __device__ T* at(int64_t b, int64_t l, int64_t h) const {
    return data + b * batch_stride + l * seq_stride + h * head_stride;
  }
  /// Returns null if the tensor is absent.
  __device__ T* at_or_null(int64_t b, int64_t l, int64_t h) const {
    return data == nullptr ? nullptr : at(b, l, h);
  }
};

template <class T, class U>
Rows<T> rows_of(const View<U>& view) {
  return {static_cast<T*>(view.data), view.batch_stride, view.seq_stride, view.head_stride};
}

/// True if every row of `width` 16-bit elements starts and ends at a multiple of 16 bytes, so that
/// kernels may read it in 16-byte chunks.
template <class U>
bool has_aligned_rows(const View<U>& view, int64_t width) {
  constexpr int64_t kElements = 8;  // 16 bytes
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && width % kElements == 0 &&
         view.batch_stride % kElements == 0 && view.seq_stride % kElements == 0 &&
         view.head_stride % kElements == 0;
}

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
// Stands for "no window". Beyond every column, yet small enough that column + kFarAway fits an int.
inline constexpr int kFarAway = 1 << 30;

/// The rows and columns of one batch entry, and which columns each row sees before any mask. Row m
/// sees the columns m + diagonal - window < n <= m + diagonal. A right bound of the window shifts
/// the diagonal, so that kernels need no bound of their own for it.
struct Sequence {
  int q_begin, seq_q;      // first row in the tensor, number of rows
  int k_begin, seq_k;      // first column in the tensor, number of columns
  int first_key, end_key;  // columns [first_key, end_key) are not padding
  int diagonal;            // m' - m, plus the right bound if there is one
  int window;              // kFarAway without a left bound
  bool bounded;            // there is a right bound: causal, or a window's

  __device__ int first_visible(int m) const { return max(first_key, m + diagonal - window + 1); }
  __device__ int end_visible(int m) const {
    return bounded ? min(end_key, m + diagonal + 1) : end_key;
  }
  /// Rows [first_row, end_row) see column n before any mask. Both bounds grow with n.
  __device__ int first_row(int n) const { return bounded ? max(0, n - diagonal) : 0; }
  __device__ int end_row(int n) const {
    return window == kFarAway ? seq_q : min(seq_q, n - diagonal + window);
  }
};

struct Shape {
  int batch, heads, kv_heads, seq_q, seq_k, head_dim, value_dim;
  int window, right;  // right: columns after m' that row m sees; 0 unless bounded
  bool bounded, align_to_key_lengths;
  const int32_t* key_starts;    // [B]
  const int32_t* key_lengths;   // [B]
  const int32_t* cu_seqlens_q;  // [B + 1]
  const int32_t* cu_seqlens_k;  // [B + 1]
  Mask mask;

  __device__ int kv_head(int h) const { return h / (heads / kv_heads); }

  __device__ Sequence sequence(int b) const {
    Sequence seq{.q_begin = 0, .seq_q = seq_q, .k_begin = 0, .seq_k = seq_k};
    if (cu_seqlens_q != nullptr) {
      seq.q_begin = cu_seqlens_q[b];
      seq.seq_q = cu_seqlens_q[b + 1] - seq.q_begin;
      seq.k_begin = cu_seqlens_k[b];
      seq.seq_k = cu_seqlens_k[b + 1] - seq.k_begin;
    }
    seq.first_key = key_starts == nullptr ? 0 : max(0, key_starts[b]);
    seq.end_key = key_lengths == nullptr ? seq.seq_k : min(seq.seq_k, key_lengths[b]);
    seq.diagonal = (align_to_key_lengths ? seq.end_key : seq.seq_k) - seq.seq_q + right;
    seq.window = window;
    seq.bounded = bounded;
    return seq;
  }
};

inline Shape shape_of(const Problem& problem) {
  const auto narrow_size = [](int64_t size) { return static_cast<int>(size); };
  const Window bounds = problem.bounds();
  const bool bounded = bounds.right != kNoBound;
  // A row has seq_k columns to its left at most, and seq_q - 1 to its right.
  const int right = bounded ? narrow_size(std::min(bounds.right, problem.seq_q)) : 0;
  const int left = narrow_size(std::min(bounds.left, problem.seq_k));
  return {.batch = narrow_size(problem.batch),
          .heads = narrow_size(problem.heads),
          .kv_heads = narrow_size(problem.kv_heads),
          .seq_q = narrow_size(problem.seq_q),
          .seq_k = narrow_size(problem.seq_k),
          .head_dim = narrow_size(problem.head_dim),
          .value_dim = narrow_size(problem.value_dim),
          .window = bounds.left == kNoBound ? kFarAway : left + right + 1,
          .right = right,
          .bounded = bounded,
          .align_to_key_lengths = problem.align_to_key_lengths && problem.key_lengths != nullptr,
          .key_starts = problem.key_starts,
          .key_lengths = problem.key_lengths,
          .cu_seqlens_q = problem.cu_seqlens_q,
          .cu_seqlens_k = problem.cu_seqlens_k,
          .mask = problem.mask};
}

/// The (batch entry, head, tile) that a block of a one-dimensional grid computes. Consecutive
/// blocks take the tiles of one head, so that its keys and values stay in the L2 cache.
struct WorkTile {
  int b, h, tile;

  __device__ WorkTile(int64_t block, int heads, int tiles)
      : b(static_cast<int>(block / tiles / heads)),
        h(static_cast<int>(block / tiles % heads)),
        tile(static_cast<int>(block % tiles)) {}
};

}  // namespace diffattn::cuda
