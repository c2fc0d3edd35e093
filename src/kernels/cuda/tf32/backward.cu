// SPDX-License-Identifier: Apache-2.0
//
// Backward for float32, two passes without atomics:
//
//   over keys: a block owns 128 keys of a (batch entry, kv head), over its heads and queries
//   over queries: a block owns 128 rows of a (batch entry, head), over the keys they may see
//
// A warp owns 16 of the 128. Each step takes 32 of the others, columns here:
//   (1) s1, s2, dp: dot products of rows and columns                    [16, 32]
//   (2) p = exp2(scale log2(e) s + mask - lse);
//       ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//   (3) sums of the owned rows += weights times the columns' rows
//
// A block whose sums are not finite anywhere runs once more, carefully, see tile.cuh.

#include "kernels/cuda/check.h"
#include "kernels/cuda/simt/backward.cuh"
#include "kernels/cuda/tf32/launch.h"
#include "kernels/cuda/tf32/tile.cuh"

namespace diffattn::cuda::tf32 {
namespace {

using simt::BackwardArguments;

struct Aligned {
  bool queries, keys;    // q1, q2, dO and k1, k2, v: 16-byte loads are allowed
  bool dqueries, dkeys;  // dq1, dq2 and dk1, dk2, dv: 16-byte stores are
};

/// What a row of queries has beside q and dO.
struct RowStats {
  float lse1, lse2, delta1, delta2, lambda;
};
inline constexpr int kStats = 5;

/// Either side's rows: q1, q2, dO or k1, k2, v.
template <int kRows, int kD, int kDv>
struct alignas(16) Side {
  float x1[kRows * kPitch<kD>], x2[kRows * kPitch<kD>];
  float wide[kRows * kPitch<kDv>];
};

template <int kD, int kDv>
struct BackwardSmem {
  Side<kBlockRows, kD, kDv> own;
  struct Stage {
    Side<kColumns, kD, kDv> side;
    float stats[kStats][kColumns];  // over keys
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
  BlockFacts& block;
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

  /// (1)
  __device__ void dots(const Side<kColumns, kD, kDv>& side, Tile& s1, Tile& s2, Tile& dp) {
    dot_rows<kD>(s1[0], row_address<kD>(smem.own.x1), column_address<kD>(side.x1),
                 args.shape.head_dim);
    dot_rows<kD>(s2[0], row_address<kD>(smem.own.x2), column_address<kD>(side.x2),
                 args.shape.head_dim);
    dot_rows<kDv>(dp[0], row_address<kDv>(smem.own.wide), column_address<kDv>(side.wide),
                  args.shape.value_dim);
    if (!kCareful) return;
    again_dots<kD>(s1[0], smem.own.x1, side.x1, args.shape.head_dim);
    again_dots<kD>(s2[0], smem.own.x2, side.x2, args.shape.head_dim);
    again_dots<kDv>(dp[0], smem.own.wide, side.wide, args.shape.value_dim);
  }

  template <class F>
  __device__ static void for_each_entry(F f) {
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(j, e);
    }
  }

  /// (2) of one pair: s1 becomes ds1, s2 ds2 and dp p1 - lambda p2, 0 where the query may not see
  /// the key. Without a bias the product with the scale is not rounded before lse is taken off.
  __device__ void to_gradients(float& s1, float& s2, float& dp, const RowStats& row,
                               float bias) const {
    const float p1 = probability(s1, args.scale_log2, bias, row.lse1);
    const float p2 = __fmul_rn(row.lambda, probability(s2, args.scale2_log2, bias, row.lse2));
    s1 = p1 * (dp - row.delta1);
    s2 = -p2 * (dp - row.delta2);
    dp = p1 - p2;
    if (bias == -INFINITY) s1 = s2 = dp = 0.0f;  // even if they are NaN
  }
  __device__ static float probability(float s, float scale, float bias, float lse) {
    if (bias == 0.0f) return ptx::probability(fmaf(s, scale, -lse));
    return ptx::probability(fmaf(s, scale, bias) - lse);
  }

  /// Rows of `sum` to those of `out`, if there is such a tensor.
  template <int kWidth>
  __device__ void store(const Rows<float>& out, float (&sum)[1][kWidth / 8][4], float scale,
                        int64_t begin, int end_row, int h, int width, bool is_aligned) const {
    if (out.data == nullptr) return;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + lane / 4 + 8 * i;
      float* const to = out.at(block.b, begin + row, h);
#pragma unroll
      for (int c = 0; c < kWidth / 32; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 32 * c + lane % 4 * 8 + 4 * e;
          float x[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            x[j] = sum[0][4 * c + j][2 * i + e] * scale;
            finite = finite && fabsf(x[j]) < INFINITY;
          }
          if (row >= end_row) continue;
          if (is_aligned && column + 4 <= width) {
            *reinterpret_cast<float4*>(to + column) = {x[0], x[1], x[2], x[3]};
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              if (column + j < width) to[column + j] = x[j];
            }
          }
        }
      }
    }
    if (!finite) block.again = 1;
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
      const auto advance = [&](int& h, int& m0) {  // heads one after the other
        m0 += kColumns;
        if (m0 >= end) m0 = begin, ++h;
      };
      int h = block.h * group, m0 = begin;
      load_keys(smem.own, block.h, block.row);
      if (h < end_h) load_stage(smem.stage[0], h, m0);
      ptx::commit_copies();
      for (int stage = 0; h < end_h; stage ^= 1) {
        ptx::wait_copies<0>();
        __syncthreads();  // this stage is there, and nobody reads the other
        int next_h = h, next_m0 = m0;
        advance(next_h, next_m0);
        if (next_h < end_h) load_stage(smem.stage[stage ^ 1], next_h, next_m0);
        ptx::commit_copies();
        if (are_keys_seen(m0)) step_keys(smem.stage[stage], h, m0, dv, dk1, dk2);
        h = next_h, m0 = next_m0;
      }
    }
    const int d = args.shape.head_dim;
    store<kDv>(args.dv, dv, 1.0f, seq.k_begin, seq.seq_k, block.h, args.shape.value_dim,
               aligned.dkeys);
    store<kD>(args.dk1, dk1, args.scale, seq.k_begin, seq.seq_k, block.h, d, aligned.dkeys);
    store<kD>(args.dk2, dk2, args.scale2, seq.k_begin, seq.seq_k, block.h, d, aligned.dkeys);
  }

  __device__ void load_stage(Stage& stage, int h, int m0) {
    load_queries(stage.side, h, m0);
    const int thread = ptx::reread_thread(), which = thread / kColumns, m = m0 + thread % kColumns;
    if (which >= kStats) return;
    const RowState& state = args.state;
    const Rows<float>& rows = which == 0   ? state.lse1
                              : which == 1 ? state.lse2
                              : which == 2 ? state.delta1
                              : which == 3 ? state.delta2
                                           : state.lambda;
    const bool exists = m < seq.seq_q;
    ptx::copy_4_or_zero(ptx::smem_address(&stage.stats[which][thread % kColumns]),
                        exists ? rows.at(block.b, seq.q_begin + m, h) : rows.data, exists);
  }

  /// May any of 32 queries from m0 see any of this warp's keys, before any mask?
  __device__ bool are_keys_seen(int m0) const {
    const int first = max(warp_row, seq.first_key), end = min(warp_row + kOwnRows, seq.end_key);
    return first < end && m0 + kColumns > seq.first_row(first) && m0 < seq.end_row(end - 1);
  }

  __device__ void step_keys(const Stage& stage, int h, int m0, float (&dv)[1][kDv / 8][4],
                            float (&dk1)[1][kD / 8][4], float (&dk2)[1][kD / 8][4]) {
    Tile s1, s2, dp;
    dots(stage.side, s1, s2, dp);  // (1)
    const HeadMask mask{args.shape, seq, block.b, h};
    const bool all = m0 + kColumns <= seq.seq_q &&
                     mask.all_visible(m0, m0 + kColumns, warp_row, warp_row + kOwnRows);
    const auto& stats = stage.stats;
    const auto gradient = [&](int j, int e, float bias) {  // (2)
      const int column = 8 * j + lane % 4 * 2 + e % 2;
      const RowStats row{stats[0][column], stats[1][column], stats[2][column], stats[3][column],
                         stats[4][column]};
      to_gradients(s1[0][j][e], s2[0][j][e], dp[0][j][e], row, bias);
    };
    if (all) {
      for_each_entry([&](int j, int e) { gradient(j, e, 0.0f); });
    } else {
      for_each_entry([&](int j, int e) {
        gradient(j, e,
                 mask.bias(m0 + 8 * j + lane % 4 * 2 + e % 2, warp_row + lane / 4 + e / 2 * 8));
      });
    }
    add_weighted<kCareful, 1, kDv>(dv, dp, stage.side.wide, args.shape.value_dim);  // (3)
    add_weighted<kCareful, 1, kD>(dk1, s1, stage.side.x1, args.shape.head_dim);
    add_weighted<kCareful, 1, kD>(dk2, s2, stage.side.x2, args.shape.head_dim);
  }

  __device__ void run_queries() {
    if (block.row >= seq.seq_q) return;
    const int begin = max(0, seq.first_visible(block.row)) / kColumns * kColumns;
    const int end = seq.end_visible(min(block.row + kBlockRows, seq.seq_q) - 1);
    const int g = args.shape.kv_head(block.h);
    float dq1[1][kD / 8][4] = {}, dq2[1][kD / 8][4] = {};
    load_queries(smem.own, block.h, block.row);
    if (begin < end) load_keys(smem.stage[0].side, g, begin);
    ptx::commit_copies();
    RowStats rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = seq.q_begin + min(warp_row + lane / 4 + 8 * i, seq.seq_q - 1);
      const auto stat = [&](const Rows<float>& from) { return *from.at(block.b, at, block.h); };
      rows[i] = {stat(args.state.lse1), stat(args.state.lse2), stat(args.state.delta1),
                 stat(args.state.delta2), stat(args.state.lambda)};
    }
    for (int n0 = begin, stage = 0; n0 < end; n0 += kColumns, stage ^= 1) {
      ptx::wait_copies<0>();
      __syncthreads();  // this stage is there, and nobody reads the other
      if (n0 + kColumns < end) load_keys(smem.stage[stage ^ 1].side, g, n0 + kColumns);
      ptx::commit_copies();
      if (are_queries_seeing(n0)) step_queries(smem.stage[stage].side, n0, rows, dq1, dq2);
    }
    store<kD>(args.dq1, dq1, args.scale, seq.q_begin, seq.seq_q, block.h, args.shape.head_dim,
              aligned.dqueries);
    store<kD>(args.dq2, dq2, args.scale2, seq.q_begin, seq.seq_q, block.h, args.shape.head_dim,
              aligned.dqueries);
  }

  /// May any of this warp's rows see any of 32 keys from n0, before any mask?
  __device__ bool are_queries_seeing(int n0) const {
    const int last_row = min(warp_row + kOwnRows, seq.seq_q) - 1;
    return last_row >= warp_row && n0 < seq.end_visible(last_row) &&
           n0 + kColumns > seq.first_visible(warp_row);
  }

  __device__ void step_queries(const Side<kColumns, kD, kDv>& side, int n0,
                               const RowStats (&rows)[2], float (&dq1)[1][kD / 8][4],
                               float (&dq2)[1][kD / 8][4]) {
    Tile s1, s2, dp;
    dots(side, s1, s2, dp);  // (1)
    const HeadMask mask{args.shape, seq, block.b, block.h};
    const bool all = warp_row + kOwnRows <= seq.seq_q &&
                     mask.all_visible(warp_row, warp_row + kOwnRows, n0, n0 + kColumns);
    const auto gradient = [&](int j, int e, float bias) {  // (2)
      to_gradients(s1[0][j][e], s2[0][j][e], dp[0][j][e], rows[e / 2], bias);
    };
    if (all) {
      for_each_entry([&](int j, int e) { gradient(j, e, 0.0f); });
    } else {
      for_each_entry([&](int j, int e) {
        gradient(j, e,
                 mask.bias(warp_row + lane / 4 + e / 2 * 8, n0 + 8 * j + lane % 4 * 2 + e % 2));
      });
    }
    add_weighted<kCareful, 1, kD>(dq1, s1, side.x1, args.shape.head_dim);  // (3)
    add_weighted<kCareful, 1, kD>(dq2, s2, side.x2, args.shape.head_dim);
  }
};

template <int kD, int kDv, bool kKeys>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardArguments<float> args, const Aligned aligned,
                    int tiles) {
  extern __shared__ __align__(16) float tf32_smem[];
  const int heads = kKeys ? args.shape.kv_heads : args.shape.heads;
  const BlockPlace place = place_of(blockIdx.x, args.shape.batch, heads, tiles, !kKeys);
  __shared__ BlockFacts block;
  block.set(args.shape, place);
  auto& smem = *reinterpret_cast<BackwardSmem<kD, kDv>*>(tf32_smem);
  const auto run = [](auto&& backward) { kKeys ? backward.run_keys() : backward.run_queries(); };
  run(Backward<kD, kDv, false>{args, aligned, smem, block});
  __syncthreads();  // nobody reads or writes shared memory any more
  if (block.again != 0) run(Backward<kD, kDv, true>{args, aligned, smem, block});
}

template <int kD, int kDv, bool kKeys>
void launch(const char* name, const BackwardParams& params, const BackwardArguments<float>& args,
            const Aligned& aligned, cudaStream_t stream) {
  constexpr int kBytes = sizeof(BackwardSmem<kD, kDv>);
  const int64_t rows = kKeys ? params.seq_k : params.seq_q;
  const int64_t tiles = (rows + kBlockRows - 1) / kBlockRows;
  const auto blocks =
      static_cast<unsigned>(params.batch * (kKeys ? params.kv_heads : params.heads) * tiles);
  if (blocks == 0) return;
  const auto kernel = backward_kernel<kD, kDv, kKeys>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name,
        params);
  kernel<<<blocks, kThreads, kBytes, stream>>>(args, aligned, static_cast<int>(tiles));
  check_launch(name, params);
}

}  // namespace

bool takes_backward(const BackwardParams& params) {
  return params.dtype == Dtype::kFloat32 && params.head_dim <= 64 && params.value_dim <= 128 &&
         max_smem_bytes(params) >= static_cast<int>(sizeof(BackwardSmem<64, 128>));
}

void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream) {
  const BackwardArguments<float> args = simt::backward_arguments<float>(params, workspace);
  const Aligned aligned{
      .queries =
          has_rows_of_4(params.q1) && has_rows_of_4(params.q2) && has_rows_of_4(workspace.d_o),
      .keys = has_rows_of_4(params.k1) && has_rows_of_4(params.k2) && has_rows_of_4(params.v),
      .dqueries = has_rows_of_4(params.dq1) && has_rows_of_4(params.dq2),
      .dkeys = has_rows_of_4(params.dk1) && has_rows_of_4(params.dk2) && has_rows_of_4(params.dv)};
  if (params.dk1 || params.dk2 || params.dv) {
    launch<64, 128, true>("tf32 backward over keys", params, args, aligned, stream);
  }
  if (params.dq1 || params.dq2) {
    launch<64, 128, false>("tf32 backward over queries", params, args, aligned, stream);
  }
}

}  // namespace diffattn::cuda::tf32
