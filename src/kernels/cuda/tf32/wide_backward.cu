// SPDX-License-Identifier: Apache-2.0
//
// tf32 backward (float32) for head_dim above 64 or value_dim above 128. The accumulators of dk1,
// dk2 and dv do not fit into the registers together, so there are three passes, without atomics:
//
//   kQueries: a block owns 64 query rows and computes dq1, dq2 and the row factors (backward.cu)
//   kValues:  a block owns 128 keys and computes dv
//   kKeys:    a block owns 64 keys and computes dk1, dk2
//
// The rows of a score tile are the block's own rows. Its 32 columns are keys in kQueries, and
// queries in the other passes. In kValues, each of the 8 warps computes 16 rows x 32 columns. In
// kQueries and kKeys, each warp computes 16 rows x 16 columns, and at the end two warps add their
// sums of the same rows.
//
// A step reads two tiles of its columns: `x` (q1, q2 or k1, k2) and `wide` (dO or v). It uses them
// one after the other, so each tile can load while the other is in use:
//   kValues:          p1 - lambda p2 from x;  dv += (p1 - lambda p2) dO from wide
//   kQueries, kKeys:  dp from wide;  s1, s2, ds1, ds2 from x;  sums += ds x
//
// If a result is not finite, the block runs again with kCareful (see tile.cuh).

#include <algorithm>

#include "kernels/cuda/tf32/backward.cuh"

namespace diffattn::cuda::tf32 {
namespace {

enum class Pass { kValues, kKeys, kQueries };

constexpr int kD = 128, kDv = 256;

/// Number of 16-row groups that a block owns.
template <Pass kPass>
inline constexpr int kGroupsOf = kPass == Pass::kValues ? kWarps : kWarps / 2;

/// Shared memory of a block. own1 and own2 are adjacent: add_other_columns uses them as one buffer.
template <Pass kPass>
struct alignas(16) SmemOf {
  static constexpr int kRows = kGroupsOf<kPass> * kOwnRows;
  float own1[kRows * kPitch<kD>], own2[kRows * kPitch<kD>];
  float own_wide[kPass == Pass::kValues ? 4 : kRows * kPitch<kDv>];
  float x1[kColumns * kPitch<kD>], x2[kColumns * kPitch<kD>];
  float wide[kColumns * kPitch<kDv>];
  ColumnStats stats;  // used if columns are queries; loads with x
};

template <Pass kPass, bool kCareful>
struct Wide {
  static constexpr bool kOwnsKeys = kPass != Pass::kQueries;
  static constexpr int kGroups = kGroupsOf<kPass>;
  static constexpr int kRows = kGroups * kOwnRows;
  static constexpr int kN8 = kColumns8 * kGroups / kWarps;  // a warp's columns / 8
  static constexpr int kSum = kDv / 2;                      // columns of one accumulator
  static_assert(kSum == kD);
  using Tile = float[1][kN8][4];  // rows g + 8 (e / 2), columns 8 j + 2 t + e % 2
  using Sum = float[1][kSum / 8][4];

  const BackwardArguments<float>& args;
  const Aligned& aligned;
  SmemOf<kPass>& smem;
  WorkItem& block;
  const Sequence& seq = block.seq;
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / 32 % kGroups;
  const int column0 = threadIdx.x / 32 / kGroups * kN8 * 8;  // this warp's first column of the 32
  const int warp_row = block.row + group * kOwnRows;

  /// The 32 columns of a step: queries of head h from c on, or keys from c on.
  struct Step {
    int h, c;
  };

  __device__ void run() {
    if (block.row >= (kOwnsKeys ? seq.seq_k : seq.seq_q)) return;
    int begin = 0, end = 0, heads = 1;
    Step step{block.h, 0};
    if (kOwnsKeys) {
      const int first_key = max(block.row, seq.first_key);
      const int end_key = min(block.row + kRows, seq.end_key);
      if (first_key < end_key) begin = seq.first_row(first_key), end = seq.end_row(end_key - 1);
      heads = args.shape.heads / args.shape.kv_heads;
      step.h = block.h * heads;
    } else {
      begin = max(0, seq.first_visible(block.row)) / kColumns * kColumns;
      end = seq.end_visible(min(block.row + kRows, seq.seq_q) - 1);
    }
    const int end_h = begin < end ? step.h + heads : 0;
    step.c = begin;
    Sum sums[2] = {};
    RowStats rows[2];
    RowSums row_sums;
    if (!kOwnsKeys) load_stats_of_rows(rows, args.state, block, warp_row);
    load_own();
    if (step.h < end_h) load_first(step);
    ptx::commit_copies();
    while (step.h < end_h) {
      Step next{step.h, step.c + kColumns};
      if (next.c >= end) next = {step.h + 1, begin};
      Tile s1 = {}, s2 = {}, dp = {};  // zeroed only because that saves registers
      ptx::wait_copies<0>();
      __syncthreads();  // all copies of the first tile have arrived; no warp reads the second
      load_second(step);
      ptx::commit_copies();
      const bool seen = is_seen(step.c);
      if (seen) begin_step(step, rows, row_sums, s1, s2, dp);
      ptx::wait_copies<0>();
      __syncthreads();  // all copies of the second tile have arrived; no warp reads the first
      if (next.h < end_h) load_first(next);
      ptx::commit_copies();
      if (kPass != Pass::kValues && seen) to_weights(step, rows, row_sums, s1, s2, dp);
      add_sums(sums, seen, s1, s2, dp);
      step = next;
    }
    finish(sums, rows, row_sums);
  }

  template <int kCount, int kWidth>
  __device__ void load_queries(float* tile, const Rows<const float>& rows, int h, int m0,
                               int width) {
    load_tile<kCount, kWidth>(tile, {rows.at(block.b, seq.q_begin + m0, h), rows.seq_stride, 0,
                                     seq.seq_q - m0, width, aligned.queries});
  }
  template <int kCount, int kWidth>
  __device__ void load_keys(float* tile, const Rows<const float>& rows, int g, int n0, int width) {
    load_tile<kCount, kWidth>(tile, {rows.at(block.b, seq.k_begin + n0, g), rows.seq_stride,
                                     seq.first_key - n0, seq.end_key - n0, width, aligned.keys});
  }

  __device__ void load_own() {
    const int d = args.shape.head_dim, dv = args.shape.value_dim;
    if (kOwnsKeys) {
      load_keys<kRows, kD>(smem.own1, args.k1, block.h, block.row, d);
      load_keys<kRows, kD>(smem.own2, args.k2, block.h, block.row, d);
      if (kPass == Pass::kKeys) {
        load_keys<kRows, kDv>(smem.own_wide, args.v, block.h, block.row, dv);
      }
    } else {
      load_queries<kRows, kD>(smem.own1, args.q1, block.h, block.row, d);
      load_queries<kRows, kD>(smem.own2, args.q2, block.h, block.row, d);
      load_queries<kRows, kDv>(smem.own_wide, args.d_o, block.h, block.row, dv);
    }
  }

  __device__ void load_first(const Step& step) {
    kPass == Pass::kValues ? load_x(step) : load_wide(step);
  }
  __device__ void load_second(const Step& step) {
    kPass == Pass::kValues ? load_wide(step) : load_x(step);
  }
  __device__ void load_wide(const Step& step) {
    const int dv = args.shape.value_dim;
    if (kOwnsKeys) {
      load_queries<kColumns, kDv>(smem.wide, args.d_o, step.h, step.c, dv);
    } else {
      load_keys<kColumns, kDv>(smem.wide, args.v, block.kv_h, step.c, dv);
    }
  }
  __device__ void load_x(const Step& step) {
    const int d = args.shape.head_dim;
    if (kOwnsKeys) {
      load_queries<kColumns, kD>(smem.x1, args.q1, step.h, step.c, d);
      load_queries<kColumns, kD>(smem.x2, args.q2, step.h, step.c, d);
      load_stats_of_columns(smem.stats, args, block, step.h, step.c);
    } else {
      load_keys<kColumns, kD>(smem.x1, args.k1, block.kv_h, step.c, d);
      load_keys<kColumns, kD>(smem.x2, args.k2, block.kv_h, step.c, d);
    }
  }

  /// True if any query of this warp's tile may see any key of it, ignoring the mask tensor.
  __device__ bool is_seen(int c) const {
    const int begin = c + column0, end = begin + 8 * kN8;
    if (kOwnsKeys) {
      const int first = max(warp_row, seq.first_key), last = min(warp_row + kOwnRows, seq.end_key);
      return first < last && end > seq.first_row(first) && begin < seq.end_row(last - 1);
    }
    const int last_row = min(warp_row + kOwnRows, seq.seq_q) - 1;
    return last_row >= warp_row && begin < seq.end_visible(last_row) &&
           end > seq.first_visible(warp_row);
  }

  template <int kWidth>
  __device__ void dot(Tile& s, const float* own, const float* other, int width) const {
    const float* const rows = own + group * kOwnRows * kPitch<kWidth>;
    const float* const columns = other + column0 * kPitch<kWidth>;
    dot_rows<kWidth, kOwnsKeys>(s[0], row_address<kWidth>(rows), column_address<kWidth>(columns),
                                width);
    if (kCareful) recompute_nan_dots<kWidth>(s[0], rows, columns, width);
  }

  /// Computes the part of a step that needs only the first tile: the weights in kValues, dp in the
  /// other passes.
  __device__ void begin_step(const Step& step, const RowStats (&rows)[2], RowSums& row_sums,
                             Tile& s1, Tile& s2, Tile& dp) const {
    if (kPass == Pass::kValues) {
      clear(dp[0]);
      to_weights(step, rows, row_sums, s1, s2, dp);
    } else {
      dot<kDv>(dp, smem.own_wide, smem.wide, args.shape.value_dim);
    }
  }

  /// Computes the weights from dp and x: s1 becomes ds1, s2 becomes ds2, dp becomes p1 - lambda p2.
  __device__ void to_weights(const Step& step, const RowStats (&rows)[2], RowSums& row_sums,
                             Tile& s1, Tile& s2, Tile& dp) const {
    dot<kD>(s1, smem.own1, smem.x1, args.shape.head_dim);
    dot<kD>(s2, smem.own2, smem.x2, args.shape.head_dim);
    const int c = step.c + column0;
    const HeadMask mask{args.shape, seq, block.b, step.h};
    const int m0 = kOwnsKeys ? c : warp_row, end_m = m0 + (kOwnsKeys ? 8 * kN8 : kOwnRows);
    const int n0 = kOwnsKeys ? warp_row : c, end_n = n0 + (kOwnsKeys ? kOwnRows : 8 * kN8);
    const auto gradient = [&](int j, int e, float bias) {
      const int column = column0 + 8 * j + lane % 4 * 2 + e % 2;
      const RowStats row = kOwnsKeys ? stats_of_column(smem.stats, column) : rows[e / 2];
      const Probabilities p = to_gradients(s1[0][j][e], s2[0][j][e], dp[0][j][e], row, args, bias);
      if (!kOwnsKeys) row_sums.add(e / 2, p);
    };
    if (end_m <= seq.seq_q && mask.all_visible(m0, end_m, n0, end_n)) {
      for_each_entry<kN8>([&](int j, int e) { gradient(j, e, 0.0f); });
    } else {
      for_each_entry<kN8>([&](int j, int e) {
        const int row = lane / 4 + e / 2 * 8, column = 8 * j + lane % 4 * 2 + e % 2;
        gradient(j, e, mask.bias(m0 + (kOwnsKeys ? column : row), n0 + (kOwnsKeys ? row : column)));
        if (kPass != Pass::kKeys) return;
        const float factor = ds_factor_of_column(smem.stats, column0 + column);
        s1[0][j][e] *= factor, s2[0][j][e] *= factor;
      });
    }
  }

  /// Adds weights times the rows of x or wide to the sums. All warps must call it, because kCareful
  /// has barriers.
  __device__ void add_sums(Sum (&sums)[2], bool seen, const Tile& ds1, const Tile& ds2,
                           const Tile& p) {
    const Tile& w1 = kPass == Pass::kValues ? p : ds1;
    const Tile& w2 = kPass == Pass::kValues ? p : ds2;
    constexpr int kRowPitch = kPass == Pass::kValues ? kPitch<kDv> : kPitch<kD>;
    const float* const y = kPass == Pass::kValues ? smem.wide : smem.x1;
    const float* const y1 = y + column0 * kRowPitch;
    const float* const y2 = kPass == Pass::kValues ? y1 + kSum : smem.x2 + column0 * kRowPitch;
    const int width1 = kPass == Pass::kValues ? args.shape.value_dim : args.shape.head_dim;
    const int width2 = kPass == Pass::kValues ? width1 - kSum : width1;
    if (kCareful) {
      if (seen) {
        add_unsplit<1, kSum, kRowPitch>(sums[0], w1, y1, width1);
        add_unsplit<1, kSum, kRowPitch>(sums[1], w2, y2, width2);
      }
      __syncthreads();  // all warps have added the values that cannot be split
      if (kPass == Pass::kValues) {
        clear_unsplit<kColumns, kDv>(smem.wide);
      } else {
        clear_unsplit<kColumns, kD>(smem.x1);
        clear_unsplit<kColumns, kD>(smem.x2);
      }
      __syncthreads();  // all threads have cleared them
    }
    if (!seen) return;
    add_weighted<1, kSum, kRowPitch>(sums[0], w1, y1, width1);
    add_weighted<1, kSum, kRowPitch>(sums[1], w2, y2, width2);
  }

  __device__ void finish(Sum (&sums)[2], const RowStats (&rows)[2], RowSums& row_sums) {
    DqScales scales;
    bool finite = true;
    if (kGroups < kWarps) {
      if (!add_other_columns(sums, row_sums)) return;
    }
    if (!kOwnsKeys) finite = finish_row_factors(scales, row_sums, rows, args, block, warp_row);
    const auto output = [&](const Rows<float>& to, int column, int width) {
      const bool keys = kOwnsKeys;
      const int64_t begin = keys ? seq.k_begin : seq.q_begin;
      return OutputRows{to.data == nullptr || width <= 0
                            ? nullptr
                            : to.at(block.b, begin + warp_row, block.h) + column,
                        to.seq_stride, (keys ? seq.seq_k : seq.seq_q) - warp_row, width,
                        keys ? aligned.dkeys : aligned.dqueries};
    };
    if (kPass == Pass::kValues) {
      const int dv = args.shape.value_dim;
      finite = store_sums<kSum>(output(args.dv, 0, dv), sums[0], {1.0f, 1.0f});
      finite = store_sums<kSum>(output(args.dv, kSum, dv - kSum), sums[1], {1.0f, 1.0f}) && finite;
    } else {
      const int d = args.shape.head_dim;
      const Rows<float>& to1 = kOwnsKeys ? args.dk1 : args.dq1;
      const Rows<float>& to2 = kOwnsKeys ? args.dk2 : args.dq2;
      if (kOwnsKeys) scales = {{args.scale, args.scale}, {args.scale2, args.scale2}};
      finite = store_sums<kSum>(output(to1, 0, d), sums[0], scales.dq1) && finite;
      finite = store_sums<kSum>(output(to2, 0, d), sums[1], scales.dq2) && finite;
    }
    if (!finite) block.non_finite = 1;
  }

  /// Adds the sums of the two warps that own the same rows. The warp with the upper 16 columns
  /// passes its sums through shared memory and returns false. The other one adds them and returns
  /// true.
  __device__ bool add_other_columns(Sum (&sums)[2], RowSums& row_sums) {
    constexpr int kFloats = kSum + 4;  // floats per lane
    static_assert(kGroups * 32 * kFloats <= 2 * kRows * kPitch<kD>, "they go to own1 and own2");
    ptx::wait_copies<0>();
    __syncthreads();  // all warps have finished with shared memory
    float4* const from = reinterpret_cast<float4*>(smem.own1) + group * 32 * kFloats / 4 + lane;
    float4& rows = from[32 * kSum / 4];
    if (column0 != 0) {
      rows = {row_sums.p1[0], row_sums.p1[1], row_sums.p2[0], row_sums.p2[1]};
#pragma unroll
      for (int i = 0; i < kSum / 4; ++i) {
        const float(&x)[4] = sums[i % 2][0][i / 2];
        from[32 * i] = {x[0], x[1], x[2], x[3]};
      }
    }
    __syncthreads();  // the upper columns' warps have written their sums
    if (column0 != 0) return false;
#pragma unroll
    for (int i = 0; i < kSum / 4; ++i) {
      const float4 x = from[32 * i];
      float(&sum)[4] = sums[i % 2][0][i / 2];
      sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
    const float4 x = rows;
    row_sums.p1[0] += x.x, row_sums.p1[1] += x.y, row_sums.p2[0] += x.z, row_sums.p2[1] += x.w;
    return true;
  }
};

/// Runs the block again with kCareful. Inlining it would cost the kernel registers.
template <Pass kPass>
__device__ __noinline__ void run_careful(const BackwardArguments<float>& args,
                                         const Aligned& aligned, SmemOf<kPass>& smem,
                                         WorkItem& block) {
  Wide<kPass, true>{args, aligned, smem, block}.run();
}

template <Pass kPass>
__global__ void __launch_bounds__(kThreads, 1)
    wide_backward_kernel(const __grid_constant__ BackwardArguments<float> args,
                         const __grid_constant__ Aligned aligned, int tiles) {
  extern __shared__ __align__(16) float tf32_smem[];
  using Kernel = Wide<kPass, false>;
  const int heads = Kernel::kOwnsKeys ? args.shape.kv_heads : args.shape.heads;
  __shared__ WorkItem block;
  block.set(
      args.shape,
      work_tile_of(blockIdx.x, args.shape.batch, heads, tiles, /*from_last=*/!Kernel::kOwnsKeys),
      Kernel::kRows);
  auto& smem = *reinterpret_cast<SmemOf<kPass>*>(tf32_smem);
  Kernel{args, aligned, smem, block}.run();
  __syncthreads();  // all warps have finished with shared memory and have set block.non_finite
  if (block.non_finite != 0) run_careful<kPass>(args, aligned, smem, block);
}

template <Pass kPass>
void launch(const char* name, const BackwardParams& params, const BackwardArguments<float>& args,
            const Aligned& aligned, cudaStream_t stream) {
  using Kernel = Wide<kPass, false>;
  launch_backward(name, wide_backward_kernel<kPass>, sizeof(SmemOf<kPass>), Kernel::kRows,
                  Kernel::kOwnsKeys, params, args, aligned, stream);
}

}  // namespace

bool takes_wide_backward(const BackwardParams& params) {
  constexpr size_t kBytes = std::max(sizeof(SmemOf<Pass::kValues>), sizeof(SmemOf<Pass::kKeys>));
  return params.head_dim <= kD && params.value_dim <= kDv && takes(params, kBytes);
}

void wide_backward(const BackwardParams& params, const BackwardArguments<float>& args,
                   const Aligned& aligned, cudaStream_t stream) {
  launch<Pass::kQueries>("tf32 backward: dq", params, args, aligned, stream);
  if (params.dv) launch<Pass::kValues>("tf32 backward: dv", params, args, aligned, stream);
  if (params.dk1 || params.dk2) {
    launch<Pass::kKeys>("tf32 backward: dk", params, args, aligned, stream);
  }
}

}  // namespace diffattn::cuda::tf32
