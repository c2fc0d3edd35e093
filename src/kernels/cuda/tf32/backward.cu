// SPDX-License-Identifier: Apache-2.0
//
// tf32 backward (float32) for head_dim up to 64 and value_dim up to 128. Two passes, each with a
// fixed order of summation and no atomics:
//
//   over queries: a block owns 128 rows of a (batch entry, head), visits the keys that they may
//                 see, and computes dq1, dq2 and the row factors
//   over keys:    a block owns 128 keys of a (batch entry, kv head), visits the rows that may see
//                 them in all heads of the kv head, and computes dk1, dk2, dv
//
// Each of the 8 warps owns 16 of the 128 rows. A step multiplies them with 32 rows of the other
// tensor:
//   (1) s1 = q1.k1, s2 = q2.k2, dp = dO.v                            [16, 32] per warp
//   (2) p = exp2(scale log2(e) s + mask - lse), times the row factor in the pass over keys
//       ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2), both 0 in a row that sees one key
//   (3) dq1 += ds1 k1, dq2 += ds2 k2        over queries
//       dv += (p1 - lambda p2)^T dO, dk1 += ds1^T q1, dk2 += ds2^T q2        over keys
//
// The pass over queries sums p of each row. The sum differs from 1 by the rounding error of lse.
// The row factors 1 / sum correct this error in dq at the end, and in the pass over keys (see
// simt::row_factor). If a result is not finite, the block runs again with kCareful (see tile.cuh).

#include "kernels/cuda/tf32/backward.cuh"
#include "kernels/cuda/tf32/launch.h"

namespace diffattn::cuda::tf32 {
namespace {

/// Tiles of the queries (x1 = q1, x2 = q2, wide = dO) or of the keys (k1, k2, v).
template <int kRows, int kD, int kDv>
struct alignas(16) Side {
  float x1[kRows * kPitch<kD>], x2[kRows * kPitch<kD>];
  float wide[kRows * kPitch<kDv>];
};

/// Shared memory of a block: its own rows, and two stages of rows of the other side.
template <int kD, int kDv>
struct BackwardSmem {
  Side<kBlockRows, kD, kDv> own;
  struct Stage {
    Side<kColumns, kD, kDv> side;
    ColumnStats stats;  // only in the pass over keys
  } stage[2];
};

template <int kD, int kDv, bool kCareful>
struct Backward {
  using Smem = BackwardSmem<kD, kDv>;
  using Stage = typename Smem::Stage;
  using Tile = float[1][kColumns8][4];  // rows g + 8 (e / 2), columns 8 j + 2 t + e % 2

  const BackwardArguments<float>& args;
  const Aligned& aligned;
  Smem& smem;
  WorkItem& block;
  const Sequence& seq = block.seq;
  const int lane = threadIdx.x % 32;
  const int warp_row = block.row + threadIdx.x / 32 * kOwnRows;

  template <int kRows>
  __device__ void load_side(Side<kRows, kD, kDv>& side, const Rows<const float>& x1,
                            const Rows<const float>& x2, const Rows<const float>& wide, int h,
                            int64_t first, int begin, int end, bool is_aligned) {
    const auto source = [&](const Rows<const float>& rows, int width) {
      return TileSource{rows.at(block.b, first, h), rows.seq_stride, begin, end, width, is_aligned};
    };
    load_tile<kRows, kD>(side.x1, source(x1, args.shape.head_dim));
    load_tile<kRows, kD>(side.x2, source(x2, args.shape.head_dim));
    load_tile<kRows, kDv>(side.wide, source(wide, args.shape.value_dim));
  }
  template <int kRows>
  __device__ void load_queries(Side<kRows, kD, kDv>& side, int h, int m0) {
    load_side(side, args.q1, args.q2, args.d_o, h, seq.q_begin + m0, 0, seq.seq_q - m0,
              aligned.queries);
  }
  template <int kRows>
  __device__ void load_keys(Side<kRows, kD, kDv>& side, int g, int n0) {
    load_side(side, args.k1, args.k2, args.v, g, seq.k_begin + n0, seq.first_key - n0,
              seq.end_key - n0, aligned.keys);
  }

  /// Computes (1). In the pass over keys (kKeys), rows of the tiles are keys and columns are
  /// queries.
  template <bool kKeys>
  __device__ void dots(const Side<kColumns, kD, kDv>& side, Tile& s1, Tile& s2, Tile& dp) {
    dot<kD, kKeys>(s1, smem.own.x1, side.x1, args.shape.head_dim);
    dot<kD, kKeys>(s2, smem.own.x2, side.x2, args.shape.head_dim);
    dot<kDv, kKeys>(dp, smem.own.wide, side.wide, args.shape.value_dim);
  }
  template <int kWidth, bool kKeys>
  __device__ void dot(Tile& s, const float* own, const float* other, int width) {
    const float* const rows = own + threadIdx.x / 32 * kOwnRows * kPitch<kWidth>;
    dot_rows<kWidth, kKeys>(s[0], row_address<kWidth>(rows), column_address<kWidth>(other), width);
    if (kCareful) recompute_nan_dots<kWidth>(s[0], rows, other, width);
  }

  /// Stores this warp's rows of `sum` to `out` if the caller wants that gradient.
  template <int kWidth>
  __device__ void store(const Rows<float>& out, const float (&sum)[1][kWidth / 8][4],
                        const float (&scale)[2], int64_t begin, int end_row, int width,
                        bool is_aligned) const {
    float* const row0 = out.at_or_null(block.b, begin + warp_row, block.h);
    const OutputRows rows{row0, out.seq_stride, end_row - warp_row, width, is_aligned};
    if (!store_sums<kWidth>(rows, sum, scale)) block.non_finite = 1;
  }

  __device__ void run_keys() {
    if (block.row >= seq.seq_k) return;
    const int first_key = max(block.row, seq.first_key);
    const int end_key = min(block.row + kBlockRows, seq.end_key);
    float dv[1][kDv / 8][4] = {}, dk1[1][kD / 8][4] = {}, dk2[1][kD / 8][4] = {};
    if (first_key < end_key) {
      const int begin = seq.first_row(first_key), end = seq.end_row(end_key - 1);
      const int group = args.shape.heads / args.shape.kv_heads;
      const int end_h = begin < end ? (block.h + 1) * group : 0;
      const auto advance = [&](int& h, int& m0) {  // to the next query tile of the group
        m0 += kColumns;
        if (m0 >= end) m0 = begin, ++h;
      };
      int h = block.h * group, m0 = begin;
      load_keys(smem.own, block.h, block.row);
      if (h < end_h) load_stage(smem.stage[0], h, m0);
      ptx::commit_copies();
      for (int stage = 0; h < end_h; stage ^= 1) {
        ptx::wait_copies<0>();
        __syncthreads();  // all copies of this stage have arrived; no warp reads the other stage
        int next_h = h, next_m0 = m0;
        advance(next_h, next_m0);
        if (next_h < end_h) load_stage(smem.stage[stage ^ 1], next_h, next_m0);
        ptx::commit_copies();
        step_keys(smem.stage[stage], h, m0, dv, dk1, dk2);
        h = next_h, m0 = next_m0;
      }
    }
    const int d = args.shape.head_dim, end = seq.seq_k;
    const float scale1[2] = {args.scale, args.scale}, scale2[2] = {args.scale2, args.scale2};
    store<kDv>(args.dv, dv, {1.0f, 1.0f}, seq.k_begin, end, args.shape.value_dim, aligned.dkeys);
    store<kD>(args.dk1, dk1, scale1, seq.k_begin, end, d, aligned.dkeys);
    store<kD>(args.dk2, dk2, scale2, seq.k_begin, end, d, aligned.dkeys);
  }

  __device__ void load_stage(Stage& stage, int h, int m0) {
    load_queries(stage.side, h, m0);
    load_stats_of_columns(stage.stats, args, block, h, m0);
  }

  /// True if any of queries [m0, m0 + 32) may see a key of this warp, ignoring the mask tensor.
  __device__ bool are_keys_seen(int m0) const {
    const int first = max(warp_row, seq.first_key), end = min(warp_row + kOwnRows, seq.end_key);
    return first < end && m0 + kColumns > seq.first_row(first) && m0 < seq.end_row(end - 1);
  }

  /// Runs one step of the pass over keys. All warps must call it, because kCareful has barriers.
  __device__ void step_keys(Stage& stage, int h, int m0, float (&dv)[1][kDv / 8][4],
                            float (&dk1)[1][kD / 8][4], float (&dk2)[1][kD / 8][4]) {
    Tile s1 = {}, s2 = {}, dp = {};  // zeroed only because that saves registers
    const bool seen = are_keys_seen(m0);
    if (seen) {
      dots<true>(stage.side, s1, s2, dp);  // (1)
      const HeadMask mask{args.shape, seq, block.b, h};
      const bool all = m0 + kColumns <= seq.seq_q &&
                       mask.all_visible(m0, m0 + kColumns, warp_row, warp_row + kOwnRows);
      const auto gradient = [&](int j, int e, float bias) {  // (2)
        const RowStats row = stats_of_column(stage.stats, 8 * j + lane % 4 * 2 + e % 2);
        to_gradients(s1[0][j][e], s2[0][j][e], dp[0][j][e], row, args, bias);
      };
      if (all) {
        for_each_entry<kColumns8>([&](int j, int e) { gradient(j, e, 0.0f); });
      } else {
        for_each_entry<kColumns8>([&](int j, int e) {
          const int column = 8 * j + lane % 4 * 2 + e % 2;
          gradient(j, e, mask.bias(m0 + column, warp_row + lane / 4 + e / 2 * 8));
          const float factor = ds_factor_of_column(stage.stats, column);
          s1[0][j][e] *= factor, s2[0][j][e] *= factor;
        });
      }
    }
    const int d = args.shape.head_dim;
    if (kCareful) {
      if (seen) {
        add_unsplit<1, kDv>(dv, dp, stage.side.wide, args.shape.value_dim);
        add_unsplit<1, kD>(dk1, s1, stage.side.x1, d);
        add_unsplit<1, kD>(dk2, s2, stage.side.x2, d);
      }
      __syncthreads();  // all warps have added the values that cannot be split
      clear_unsplit<kColumns, kDv>(stage.side.wide);
      clear_unsplit<kColumns, kD>(stage.side.x1);
      clear_unsplit<kColumns, kD>(stage.side.x2);
      __syncthreads();  // all threads have cleared them
    }
    if (!seen) return;
    add_weighted<1, kDv>(dv, dp, stage.side.wide, args.shape.value_dim);  // (3)
    add_weighted<1, kD>(dk1, s1, stage.side.x1, d);
    add_weighted<1, kD>(dk2, s2, stage.side.x2, d);
  }

  __device__ void run_queries() {
    if (block.row >= seq.seq_q) return;
    const int begin = max(0, seq.first_visible(block.row)) / kColumns * kColumns;
    const int end = seq.end_visible(min(block.row + kBlockRows, seq.seq_q) - 1);
    float dq1[1][kD / 8][4] = {}, dq2[1][kD / 8][4] = {};
    load_queries(smem.own, block.h, block.row);
    if (begin < end) load_keys(smem.stage[0].side, block.kv_h, begin);
    ptx::commit_copies();
    RowStats rows[2];
    RowSums sums;
    load_stats_of_rows(rows, args.state, block, warp_row);
    for (int n0 = begin, stage = 0; n0 < end; n0 += kColumns, stage ^= 1) {
      ptx::wait_copies<0>();
      __syncthreads();  // all copies of this stage have arrived; no warp reads the other stage
      if (n0 + kColumns < end) load_keys(smem.stage[stage ^ 1].side, block.kv_h, n0 + kColumns);
      ptx::commit_copies();
      step_queries(smem.stage[stage].side, n0, rows, sums, dq1, dq2);
    }
    DqScales scales;
    if (!finish_row_factors(scales, sums, rows, args, block, warp_row)) block.non_finite = 1;
    const int d = args.shape.head_dim;
    store<kD>(args.dq1, dq1, scales.dq1, seq.q_begin, seq.seq_q, d, aligned.dqueries);
    store<kD>(args.dq2, dq2, scales.dq2, seq.q_begin, seq.seq_q, d, aligned.dqueries);
  }

  /// True if any row of this warp may see any of keys [n0, n0 + 32), ignoring the mask tensor.
  __device__ bool are_queries_seeing(int n0) const {
    const int last_row = min(warp_row + kOwnRows, seq.seq_q) - 1;
    return last_row >= warp_row && n0 < seq.end_visible(last_row) &&
           n0 + kColumns > seq.first_visible(warp_row);
  }

  /// Runs one step of the pass over queries. All warps must call it, because kCareful has barriers.
  __device__ void step_queries(Side<kColumns, kD, kDv>& side, int n0, const RowStats (&rows)[2],
                               RowSums& sums, float (&dq1)[1][kD / 8][4],
                               float (&dq2)[1][kD / 8][4]) {
    Tile s1 = {}, s2 = {}, dp = {};  // zeroed only because that saves registers
    const bool seen = are_queries_seeing(n0);
    if (seen) {
      dots<false>(side, s1, s2, dp);  // (1)
      const HeadMask mask{args.shape, seq, block.b, block.h};
      const bool all = warp_row + kOwnRows <= seq.seq_q &&
                       mask.all_visible(warp_row, warp_row + kOwnRows, n0, n0 + kColumns);
      const auto gradient = [&](int j, int e, float bias) {  // (2)
        sums.add(e / 2,
                 to_gradients(s1[0][j][e], s2[0][j][e], dp[0][j][e], rows[e / 2], args, bias));
      };
      if (all) {
        for_each_entry<kColumns8>([&](int j, int e) { gradient(j, e, 0.0f); });
      } else {
        for_each_entry<kColumns8>([&](int j, int e) {
          gradient(j, e,
                   mask.bias(warp_row + lane / 4 + e / 2 * 8, n0 + 8 * j + lane % 4 * 2 + e % 2));
        });
      }
    }
    const int d = args.shape.head_dim;
    if (kCareful) {
      if (seen) {
        add_unsplit<1, kD>(dq1, s1, side.x1, d);
        add_unsplit<1, kD>(dq2, s2, side.x2, d);
      }
      __syncthreads();  // all warps have added the values that cannot be split
      clear_unsplit<kColumns, kD>(side.x1);
      clear_unsplit<kColumns, kD>(side.x2);
      __syncthreads();  // all threads have cleared them
    }
    if (!seen) return;
    add_weighted<1, kD>(dq1, s1, side.x1, d);  // (3)
    add_weighted<1, kD>(dq2, s2, side.x2, d);
  }
};

template <int kD, int kDv, bool kKeys, bool kCareful>
__device__ inline void run(const BackwardArguments<float>& args, const Aligned& aligned,
                           BackwardSmem<kD, kDv>& smem, WorkItem& block) {
  Backward<kD, kDv, kCareful> backward{args, aligned, smem, block};
  kKeys ? backward.run_keys() : backward.run_queries();
}

/// Runs the block again with kCareful. Inlining it would cost the kernel registers.
template <int kD, int kDv, bool kKeys>
__device__ __noinline__ void run_careful(const BackwardArguments<float>& args,
                                         const Aligned& aligned, BackwardSmem<kD, kDv>& smem,
                                         WorkItem& block) {
  run<kD, kDv, kKeys, true>(args, aligned, smem, block);
}

template <int kD, int kDv, bool kKeys>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardArguments<float> args,
                    const __grid_constant__ Aligned aligned, int tiles) {
  extern __shared__ __align__(16) float tf32_smem[];
  const int heads = kKeys ? args.shape.kv_heads : args.shape.heads;
  const WorkTile work = work_tile_of(blockIdx.x, args.shape.batch, heads, tiles, !kKeys);
  __shared__ WorkItem block;
  block.set(args.shape, work, kBlockRows);
  auto& smem = *reinterpret_cast<BackwardSmem<kD, kDv>*>(tf32_smem);
  run<kD, kDv, kKeys, false>(args, aligned, smem, block);
  __syncthreads();  // all warps have finished with shared memory and have set block.non_finite
  if (block.non_finite != 0) run_careful<kD, kDv, kKeys>(args, aligned, smem, block);
}

template <bool kKeys>
void launch(const char* name, const BackwardParams& params, const BackwardArguments<float>& args,
            const Aligned& aligned, cudaStream_t stream) {
  launch_backward(name, backward_kernel<64, 128, kKeys>, sizeof(BackwardSmem<64, 128>), kBlockRows,
                  kKeys, params, args, aligned, stream);
}

bool is_narrow(const BackwardParams& params) {
  return params.head_dim <= 64 && params.value_dim <= 128;
}

}  // namespace

bool takes_backward(const BackwardParams& params) {
  if (!is_narrow(params)) return takes_wide_backward(params);
  return takes(params, sizeof(BackwardSmem<64, 128>));
}

void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream) {
  const BackwardArguments<float> args = simt::backward_arguments<float>(params, workspace);
  const Aligned aligned = alignment_of(params, workspace);
  if (!is_narrow(params)) return wide_backward(params, args, aligned, stream);
  launch<false>("tf32 backward over queries", params, args, aligned, stream);
  if (params.dk1 || params.dk2 || params.dv) {
    launch<true>("tf32 backward over keys", params, args, aligned, stream);
  }
}

}  // namespace diffattn::cuda::tf32
