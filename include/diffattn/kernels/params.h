// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "diffattn/kernels/view.h"

/// The parameters of every operation, as plain structs of pointers, sizes and strides. All backends
/// compute
///
///   A   = softmax(scale q1 k1^T + mask) - lambda softmax(scale2 q2 k2^T + mask)        [M, N]
///   O   = A v                                                                          [M, Dv]
///   out = out_scale * O                                      without head norm
///   out = out_scale * weight * O / sqrt(mean(O^2) + eps)     with head norm
///
/// for each batch entry b and head h; head h reads kv head h / (heads / kv_heads) and noise head
/// h / noise_group() of q2.
/// docs/algorithm.md explains the symbols and the gradients. The "accumulator type" is double for
/// kFloat64, else float.
namespace diffattn {

/// A bound beyond every column, yet small enough for sums of a column and a bound.
inline constexpr int64_t kNoBound = int64_t{1} << 62;
inline constexpr int kNoCapabilityLimit = std::numeric_limits<int>::max();

/// The columns that a row sees beside its own column m': m' - left <= n <= m' + right.
struct Window {
  int64_t left = kNoBound;   // at least -1; -1 with right = 0 is an empty window
  int64_t right = kNoBound;  // at least 0

  /// Returns the window of the last `columns` columns up to m'.
  static constexpr Window last(int64_t columns) { return {columns - 1, 0}; }
  /// Returns the window of bounds as users give them: -1 stands for no bound.
  static constexpr Window beside(int64_t left, int64_t right) {
    return {left < 0 ? kNoBound : left, right < 0 ? kNoBound : right};
  }
  /// Returns the part of the window up to m'.
  constexpr Window causal() const { return {left, right < 0 ? right : 0}; }

  bool operator==(const Window&) const = default;
};

/// Strides, in elements, of a mask [B, H, M, N]; 0 along each broadcast dimension.
struct MaskStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;
};

/// The pages of a KV cache: row n of k1, k2 and v of sequence b lies at
/// p batch_stride + (n % size) seq_stride with p = table[b stride + n / size].
struct Pages {
  const int32_t* table = nullptr;  // [B, stride]; null: the cache is contiguous
  int64_t stride = 0;
  int64_t size = 0;  // rows of a page, a multiple of 16; on CPUs best a multiple of 64
};

enum class MaskKind : uint8_t { kNone, kBoolean, kAdditive };

/// A boolean mask (one byte per entry, non-zero = visible) or an additive mask (added to the scores
/// of both maps; -inf = hidden).
struct Mask {
  MaskKind kind = MaskKind::kNone;
  Dtype dtype = Dtype::kFloat32;  // of an additive mask
  const void* data = nullptr;     // [B, H, M, N], broadcast by strides of 0
  MaskStrides strides;
};

/// The inputs that all operations share: shapes, queries, keys, lambda and the masking rules.
struct Problem {
  Dtype dtype = Dtype::kFloat32;  // of q1 q2 k1 k2 v, out and their gradients
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  /// Heads of q2: a divisor of `heads` and a multiple of `kv_heads`; 0 means `heads`. Consecutive
  /// heads share a noise head and its map 2. Only the CPU's forward and backward support fewer
  /// noise heads than `heads`, and only if the mask is the same for all heads.
  int64_t noise_heads = 0;
  int64_t seq_q = 0;  // M; packed: the longest sequence
  int64_t seq_k = 0;  // N; packed: the longest sequence
  int64_t head_dim = 0;
  int64_t value_dim = 0;

  View<const void> q1;      // [B, M, H, D]
  View<const void> q2;      // [B, M, noise heads, D]
  View<const void> k1, k2;  // [B, N, Hkv, D]; may be the same memory
  View<const void> lambda;  // [B, M, H], accumulator type; stride 0 along broadcast dimensions

  double scale = 1.0;   // of map 1
  double scale2 = 1.0;  // of map 2

  /// Query row m is aligned with column m' = m + N - M. Causal: it sees n <= m'. With a window, it
  /// sees m' - window.left <= n <= m' + window.right.
  bool causal = false;
  Window window;
  const int32_t* key_starts = nullptr;   // [B]: columns n < key_starts[b] are padding
  const int32_t* key_lengths = nullptr;  // [B]: columns n >= key_lengths[b] are padding
  /// For decoding: m' uses key_lengths[b], the filled part of the KV cache, instead of N.
  bool align_to_key_lengths = false;
  /// [B + 1] each. If given, tensors are packed: sequence b is rows [cu_seqlens[b],
  /// cu_seqlens[b + 1]).
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  int64_t total_q = 0, total_k = 0;  // packed: rows of q1 and of k1; 0 = unknown
  Pages pages;                       // only with align_to_key_lengths, not packed
  Mask mask;  // indexed by row and column within the sequence, also if packed

  /// CUDA only: kernels written for GPUs newer than this compute capability (10 * major + minor)
  /// are not used. 80 leaves the sm80 kernels; a lower number also disables the float32 kernels
  /// that use tensor cores.
  int max_capability = kNoCapabilityLimit;

  /// Returns the number of heads that share a noise head.
  constexpr int64_t noise_group() const { return noise_heads == 0 ? 1 : heads / noise_heads; }

  /// Returns the bounds that `causal` and `window` set together.
  constexpr Window bounds() const { return causal ? window.causal() : window; }
};

/// The epilogue that turns O into out: an optional head norm (RMSNorm), then out_scale.
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
  View<void> lse1, lse2;  // [B, M, H], accumulator type, natural log; -inf for a row that sees no
                          // column. Both or neither.
  View<void> o, o2;       // [B, M, H, Dv]: O before the epilogue, and softmax2 v. Optional, for
                          // a backward that reads them instead of recomputing them.
  View<void> o_rest, o2_rest;  // [B, M, H, Dv], int8: rounding errors of 16-bit o and o2, in 1/256
                               // of a unit in the last place. Optional, with o and o2.
};

/// Gradients of the inputs in `Problem`. A call overwrites them (it never adds) and skips null
/// ones. dlambda and dmask are dense: no gaps between their elements, no negative strides.
struct ProblemGradients {
  View<void> dq1;         // [B, M, H, D]
  View<void> dq2;         // [B, M, noise heads, D]
  View<void> dk1, dk2;    // [B, N, Hkv, D]
  View<void> dlambda;     // accumulator type, shape of lambda before broadcasting
  void* dmask = nullptr;  // accumulator type, shape of the additive mask before broadcasting
  MaskStrides dmask_strides;
};

struct BackwardParams : Problem, ProblemGradients {
  View<const void> v;
  Epilogue epilogue;
  View<const void> dout;             // [B, M, H, Dv]
  View<const void> lse1, lse2;       // from the forward
  View<const void> o, o2;            // from the forward, if it saved them
  View<const void> o_rest, o2_rest;  // from the forward; without them dO.o has o's rounding error

  /// True: the same bits in every run. False lets CUDA kernels sum dq1 and dq2 in any order, which
  /// is faster.
  bool deterministic = true;

  View<void> dv;                 // [B, N, Hkv, Dv]
  void* dnorm_weight = nullptr;  // [Dv], accumulator type
};

/// Statistics of one row of A over the columns it sees; all 0 for a row that sees none.
enum Stat : int {
  kStatVisible,       // number of columns that the row sees
  kStatAbsSum,        // sum |A|
  kStatSquareSum,     // sum A^2
  kStatNegativeMass,  // sum max(-A, 0)
  kStatMax,           // max A
  kStatSparse,        // share of columns with |A| < sparse_threshold
  kStatFocus,         // share with |A| > 1/2
  kStatCoverage,      // share with A > 1/10
  kStatEntropy,       // -sum a log a, a = |A| / sum |A|
  kStatSinkMass,      // A at the first column that the row sees
  kStatCancelled,     // sum min(p1, max(lambda p2, 0)): mass of map 1 that map 2 cancels
  kStatOverlap,       // sum min(p1, p2): similarity of the two maps, in [0, 1]
  kStatCount
};

struct StatsParams : Problem {
  double sparse_threshold = 1e-3;
  View<void> stats;  // [B, M, H, kStatCount], accumulator type
};

/// Counts and shares have no gradient. The other statistics are differentiable almost everywhere.
struct StatsBackwardParams : Problem, ProblemGradients {
  View<const void> dstats;  // [B, M, H, kStatCount], accumulator type
};

/// The maps p1, p2 and A over rows [row_begin, row_end) and columns [col_begin, col_end),
/// downsampled to a grid of `rows` x `cols` cells. A cell shows its entry of largest magnitude,
/// with its sign, so that an isolated negative entry does not vanish.
struct MapParams : Problem {
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
  int64_t rows = 0, cols = 0;
  void* map = nullptr;  // [B, H, 3, rows, cols], accumulator type
};

}  // namespace diffattn
