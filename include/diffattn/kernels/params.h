// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// What every backend computes, as plain structs of pointers, sizes and strides.
///
///   A   = softmax(scale q1 k1^T + mask) - lambda softmax(scale2 q2 k2^T + mask)        [M, N]
///   O   = A v                                                                          [M, Dv]
///   out = out_scale * O                                      without head norm
///   out = out_scale * weight o O / sqrt(mean(O^2) + eps)     with head norm
///
/// per batch entry b and head h; head h reads kv head h / (heads / kv_heads). Symbols and
/// gradients: docs/algorithm.md. The "accumulator type" is double for kFloat64, else float.
namespace diffattn {

inline constexpr int64_t kNoWindow = -1;

/// Strides in elements of something that broadcasts to [B, H, M, N]; 0 where it is broadcast.
struct MaskStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;
};

enum class MaskKind : uint8_t { kNone, kBoolean, kAdditive };

/// A boolean mask (one byte per entry, non-zero = may see) or an additive one (added to both
/// maps' scores; -inf = may not see).
struct Mask {
  MaskKind kind = MaskKind::kNone;
  Dtype dtype = Dtype::kFloat32;  // of an additive mask
  const void* data = nullptr;     // broadcast [B, H, M, N]
  MaskStrides strides;
};

/// The part that all operations share: shapes, queries, keys, lambda, and who may see whom.
struct Problem {
  Dtype dtype = Dtype::kFloat32;  // of q1 q2 k1 k2 v, out and their gradients
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t seq_q = 0;  // M; packed: the longest sequence
  int64_t seq_k = 0;  // N; packed: the longest sequence
  int64_t head_dim = 0;
  int64_t value_dim = 0;

  View<const void> q1, q2;  // [B, M, H, D]
  View<const void> k1, k2;  // [B, N, Hkv, D]; may be the same memory
  View<const void> lambda;  // accumulator type; [B, M, H], strides 0 where it is broadcast

  double scale = 1.0;   // of map 1
  double scale2 = 1.0;  // of map 2

  /// Row m stands at column m' = m + N - M and sees n <= m' (causal, or any window), and
  /// n > m' - window with a window.
  bool causal = false;
  int64_t window = kNoWindow;
  const int32_t* key_starts = nullptr;   // [B]: columns below it are padding
  const int32_t* key_lengths = nullptr;  // [B]: columns from it on are padding
  /// Decoding: N in m' is key_lengths[b], the part of the cache that is filled.
  bool align_to_key_lengths = false;
  /// [B + 1] each: tensors are packed, sequence b has rows cu_seqlens[b] .. cu_seqlens[b + 1].
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  int64_t total_q = 0, total_k = 0;  // packed: rows of q1 and of k1; 0 = not known
  Mask mask;  // indexed by a row's and a column's place within its own sequence
};

/// What happens to O on its way out.
struct Epilogue {
  bool norm = false;
  double norm_eps = 0.0;
  const void* norm_weight = nullptr;  // [Dv], accumulator type; null = ones
  double out_scale = 1.0;
};

struct ForwardParams : Problem {
  View<const void> v;  // [B, N, Hkv, Dv]
  Epilogue epilogue;

  View<void> out;         // [B, M, H, Dv]
  View<void> lse1, lse2;  // [B, M, H], accumulator type, natural log; -inf where nothing is seen.
                          // Either both or neither.
  View<void> o, o2;       // [B, M, H, Dv]: O before the epilogue, and softmax2 v. Optional, for
                          // backward passes that would rather read than recompute them.
  View<void> o_rest, o2_rest;  // [B, M, H, Dv], int8: what rounding o and o2 to 16 bits lost, in
                               // 1/256 of their unit in the last place. Optional, with o and o2.
};

/// Gradients of what `Problem` holds. They are overwritten, never added to; a null one is not
/// wanted. dlambda and dmask are dense: no gaps between their elements, no negative strides.
struct ProblemGradients {
  View<void> dq1, dq2;    // [B, M, H, D]
  View<void> dk1, dk2;    // [B, N, Hkv, D]
  View<void> dlambda;     // accumulator type, strides of the shape lambda really has
  void* dmask = nullptr;  // of an additive mask; accumulator type, not broadcast where mask is not
  MaskStrides dmask_strides;
};

struct BackwardParams : Problem, ProblemGradients {
  View<const void> v;
  Epilogue epilogue;
  View<const void> dout;             // [B, M, H, Dv]
  View<const void> lse1, lse2;       // of the forward
  View<const void> o, o2;            // of the forward, where it saved them
  View<const void> o_rest, o2_rest;  // likewise; without them dO.o errs by a rounding of o

  /// The same bits in every run. Where it costs time (CUDA), false lets sums of dq1 and dq2 be
  /// taken in any order.
  bool deterministic = true;

  View<void> dv;                 // [B, N, Hkv, Dv]
  void* dnorm_weight = nullptr;  // [Dv], accumulator type
};

/// Statistics of one row of A, over the columns it may see (0 for a row that sees nothing).
enum Stat : int {
  kStatVisible,       // how many columns the row may see
  kStatAbsSum,        // sum |A|
  kStatSquareSum,     // sum A^2
  kStatNegativeMass,  // sum max(-A, 0)
  kStatMax,           // max A
  kStatSparse,        // share of columns with |A| < sparse_threshold
  kStatFocus,         // share with |A| > 1/2
  kStatCoverage,      // share with A > 1/10
  kStatEntropy,       // -sum a log a, a = |A| / sum |A|
  kStatSinkMass,      // A at the first column the row may see
  kStatCancelled,     // sum min(p1, max(lambda p2, 0)): what map 2 takes away from map 1
  kStatOverlap,       // sum min(p1, p2): likeness of the two maps, in [0, 1]
  kStatCount
};

struct StatsParams : Problem {
  double sparse_threshold = 1e-3;
  View<void> stats;  // [B, M, H, kStatCount], accumulator type
};

/// Counts and shares have no gradient; the others have, almost everywhere.
struct StatsBackwardParams : Problem, ProblemGradients {
  View<const void> dstats;  // [B, M, H, kStatCount], accumulator type
};

/// The maps p1, p2 and A themselves, over rows [row_begin, row_end) and columns [col_begin,
/// col_end), in a grid of `rows` x `cols` cells. A cell that covers several entries shows the one
/// of largest magnitude, with its sign, so that an isolated negative entry does not vanish.
struct MapParams : Problem {
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
  int64_t rows = 0, cols = 0;
  void* map = nullptr;  // [B, H, 3, rows, cols], accumulator type
};

}  // namespace diffattn
