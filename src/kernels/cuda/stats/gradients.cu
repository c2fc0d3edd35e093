// SPDX-License-Identifier: Apache-2.0
//
// dq and dk of the row statistics, with the maps recomputed in float. Two kernels of 256 threads
// per block (thread layout in simt/tile.cuh), each with a fixed order of summation:
//
//   stats_rows_kernel: a block owns 32 rows of a (batch entry, head) and makes four passes over the
//   keys that they may see
//     (1) m, l of both maps
//     (2) S = sum |A|, entropy, first visible column, column of the maximum
//     (3) dp of every entry;  mean = sum p dp and the row's dlambda, to the workspace
//     (4) ds = p (dp - mean);  dq += scale ds k
//   stats_keys_kernel: a block owns 32 keys of a (batch entry, kv head) and visits the rows that
//   may see them in all heads of the kv head
//     (5) ds as in (4), with the rows' state from the workspace;  dk += scale ds^T q

#include "kernels/cuda/check.h"
#include "kernels/cuda/stats/workspace.cuh"

namespace diffattn::cuda {
namespace {

using simt::accumulate;
using simt::kBlock;
using simt::Scores;
using simt::store_scores;
using simt::Wide;

/// Kernel arguments. Gradients that the caller does not want have null data.
template <class T>
struct GradientArguments {
  simt::MapInputs<T> in;
  Rows<const float> dstats;   // [B, M, H, kStatCount]
  Rows<RowGradient> rows;     // [B, M, H]
  Rows<float> minus_dlambda;  // [B, M, H]
  float scale, scale2;
  Rows<T> dq1, dq2, dk1, dk2;  // [B, M, H, D], [B, N, Hkv, D]
};

template <class T>
struct Gradients {
  const GradientArguments<T>& args;
  float* smem;
  const simt::TileMaps<T> maps;
  const int b = maps.b, width = maps.width, pitch = maps.pitch, ty = maps.at.ty, tx = maps.at.tx;

  float* const ds1_smem = maps.s1_smem;  // [32, kScorePitch]
  float* const ds2_smem = maps.s2_smem;  // [32, kScorePitch]
  RowGradient* const rows_smem = reinterpret_cast<RowGradient*>(
      smem + simt::TileMaps<T>::smem_floats(width));  // [32], only in stats_keys_kernel

  static int smem_bytes(int width) {
    return 4 * simt::TileMaps<T>::smem_floats(width) +
           kBlock * static_cast<int>(sizeof(RowGradient));
  }

  __device__ void run_rows(int h, int m0) const {
    if (m0 >= maps.seq.seq_q) return;
    RowGradient row[2] = {};
    prepare(h, m0, row);
    if (args.dq1.data == nullptr && args.dq2.data == nullptr) return;
    const int g = args.in.shape.kv_head(h);
    Wide dq1_reg = {}, dq2_reg = {};
    const auto range = maps.visible_range(m0);
    for (int n0 = range.begin; n0 < range.end; n0 += kBlock) {  // (4)
      Scores s1, s2;
      maps.scores(/*keys_own=*/false, h, m0, n0, s1, s2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) to_gradient(row[i], n0 + tx + 16 * j, s1[i][j], s2[i][j]);
      }
      store_ds(s1, s2);
      maps.load_keys(maps.y_smem, args.in.k1, g, n0);
      maps.load_keys(maps.x_smem, args.in.k2, g, n0);
      __syncthreads();  // all threads have written k1 and k2
      accumulate(dq1_reg, ds1_smem, maps.y_smem, width, pitch);
      accumulate(dq2_reg, ds2_smem, maps.x_smem, width, pitch);
    }
    store(args.dq1, dq1_reg, args.scale, maps.seq.q_begin, m0, maps.seq.seq_q, h);
    store(args.dq2, dq2_reg, args.scale2, maps.seq.q_begin, m0, maps.seq.seq_q, h);
  }

  /// Computes (1) to (3) for rows m0 + ty + 16 i. Fills `row` and the workspace.
  __device__ void prepare(int h, int m0, RowGradient (&row)[2]) const {
    simt::RowSoftmax p1[2], p2[2];
    maps.softmax(h, m0, p1, p2);  // (1)
    RowSums sums[2];
    for (int i = 0; i < 2; ++i) row[i].p1 = p1[i], row[i].p2 = p2[i];
    for (int i = 0; i < 2; ++i) load_row(h, m0 + ty + 16 * i, row[i]);
    maps.for_each_visible(h, m0, [&](int i, int n, float s1, float s2) {  // (2)
      sums[i].add(n, row[i].p1.probability(s1), row[i].p2.probability(s2), row[i].lambda, 0.0f);
    });
    for (int i = 0; i < 2; ++i) {
      sums[i].reduce_row();
      row[i].first = sums[i].first;
      row[i].top_at = sums[i].top_at;
      const float sum = sums[i].magnitude;
      row[i].log_base = sum > 0.0f ? logf(sum) - sums[i].entropy() : 0.0f;
      row[i].inverse_sum = sum > 0.0f ? 1.0f / sum : 0.0f;
    }
    float mean1[2] = {}, mean2[2] = {}, dlambda[2] = {};
    maps.for_each_visible(h, m0, [&](int i, int n, float s1, float s2) {  // (3)
      const float p1_n = row[i].p1.probability(s1), p2_n = row[i].p2.probability(s2);
      const EntryGradient gradient = entry_gradient(row[i], n, p1_n, p2_n);
      mean1[i] += p1_n * gradient.dp1;
      mean2[i] += p2_n * gradient.dp2;
      dlambda[i] += gradient.dlambda;
    });
    for (int i = 0; i < 2; ++i) {
      row[i].mean1 = simt::row_sum(mean1[i]);
      row[i].mean2 = simt::row_sum(mean2[i]);
      const float sum = simt::row_sum(dlambda[i]);
      const int m = m0 + ty + 16 * i;
      if (m >= maps.seq.seq_q || tx != 0) continue;
      *args.rows.at(b, maps.seq.q_begin + m, h) = row[i];
      *args.minus_dlambda.at(b, maps.seq.q_begin + m, h) = -sum;
    }
  }

  /// Loads lambda and dstats of one row. Leaves zeros if the row does not exist.
  __device__ void load_row(int h, int m, RowGradient& row) const {
    if (m >= maps.seq.seq_q) return;
    const int64_t l = maps.seq.q_begin + m;
    const float* const dstats = args.dstats.at(b, l, h);
    row.lambda = *args.in.lambda.at(b, l, h);
    row.dmagnitude = dstats[kStatAbsSum];
    row.dsquare = dstats[kStatSquareSum];
    row.dnegative = dstats[kStatNegativeMass];
    row.dtop = dstats[kStatMax];
    row.dentropy = dstats[kStatEntropy];
    row.dsink = dstats[kStatSinkMass];
    row.dcancelled = dstats[kStatCancelled];
    row.doverlap = dstats[kStatOverlap];
  }

  __device__ void run_keys(int g, int n0) const {
    if (n0 >= maps.seq.seq_k) return;
    const int first_key = max(n0, maps.seq.first_key), end_key = min(n0 + kBlock, maps.seq.end_key);
    const int group = args.in.shape.heads / args.in.shape.kv_heads;
    Wide dk1_reg = {}, dk2_reg = {};
    if (first_key < end_key) {
      const int begin = maps.seq.first_row(first_key), end = maps.seq.end_row(end_key - 1);
      for (int h = g * group; h < (g + 1) * group; ++h) {
        for (int m0 = begin; m0 < end; m0 += kBlock) add_queries(h, m0, n0, dk1_reg, dk2_reg);
      }
    }
    store(args.dk1, dk1_reg, args.scale, maps.seq.k_begin, n0, maps.seq.seq_k, g);
    store(args.dk2, dk2_reg, args.scale2, maps.seq.k_begin, n0, maps.seq.seq_k, g);
  }

  /// Computes (5) for queries [m0, m0 + 32).
  __device__ void add_queries(int h, int m0, int n0, Wide& dk1_reg, Wide& dk2_reg) const {
    if (threadIdx.x < kBlock && m0 + threadIdx.x < maps.seq.seq_q) {
      rows_smem[threadIdx.x] = *args.rows.at(b, maps.seq.q_begin + m0 + threadIdx.x, h);
    }
    Scores s1, s2;
    maps.scores(/*keys_own=*/true, h, m0, n0, s1, s2);  // its barriers also cover rows_smem
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        to_gradient(rows_smem[tx + 16 * j], n0 + ty + 16 * i, s1[i][j], s2[i][j]);
      }
    }
    store_ds(s1, s2);
    maps.load_queries(maps.y_smem, args.in.q1, h, m0);
    maps.load_queries(maps.x_smem, args.in.q2, h, m0);
    __syncthreads();  // all threads have written q1 and q2
    accumulate(dk1_reg, ds1_smem, maps.y_smem, width, pitch);
    accumulate(dk2_reg, ds2_smem, maps.x_smem, width, pitch);
  }

  /// Replaces the scores of column n of a row by their gradients, or by 0 if n is hidden.
  __device__ static void to_gradient(const RowGradient& row, int n, float& s1, float& s2) {
    ScoreGradient ds{0.0f, 0.0f};
    if (s1 != -INFINITY) ds = score_gradient(row, n, s1, s2);
    s1 = ds.ds1, s2 = ds.ds2;
  }

  /// Stores this thread's ds1 and ds2 to shared memory.
  __device__ void store_ds(const Scores& ds1, const Scores& ds2) const {
    store_scores(ds1_smem, ds1);
    store_scores(ds2_smem, ds2);
    __syncthreads();  // all threads have written ds1 and ds2, and have read x_smem and y_smem
  }

  __device__ void store(const Rows<T>& out, Wide& sum, float scale, int64_t begin, int row0,
                        int end_row, int h) const {
    if (out.data == nullptr) return;
    simt::for_each_column(sum, width, [&](int i, int column, float x) {
      const int row = row0 + ty + 16 * i;
      if (row < end_row) out.at(b, begin + row, h)[column] = narrow<T>(x * scale);
    });
  }
};

template <class T>
__global__ void __launch_bounds__(simt::kThreads, 1)
    stats_rows_kernel(const __grid_constant__ GradientArguments<T> args, int tiles) {
  extern __shared__ __align__(128) float simt_smem[];
  const WorkTile work(blockIdx.x, args.in.shape.heads, tiles);
  const int tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  Gradients<T>{args, simt_smem, {args.in, simt_smem, work.b}}.run_rows(work.h, tile * kBlock);
}

template <class T>
__global__ void __launch_bounds__(simt::kThreads, 1)
    stats_keys_kernel(const __grid_constant__ GradientArguments<T> args, int tiles) {
  extern __shared__ __align__(128) float simt_smem[];
  const WorkTile work(blockIdx.x, args.in.shape.kv_heads, tiles);
  Gradients<T>{args, simt_smem, {args.in, simt_smem, work.b}}.run_keys(work.h, work.tile * kBlock);
}

template <class T>
void launch(void (*kernel)(GradientArguments<T>, int), const char* name,
            const GradientArguments<T>& args, int64_t heads, int64_t rows,
            const StatsBackwardParams& params, cudaStream_t stream) {
  const int64_t tiles = (rows + kBlock - 1) / kBlock;
  const auto blocks = static_cast<unsigned>(params.batch * heads * tiles);
  if (blocks == 0) return;
  const int bytes = Gradients<T>::smem_bytes(args.in.shape.head_dim);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name,
        params);
  kernel<<<blocks, simt::kThreads, bytes, stream>>>(args, static_cast<int>(tiles));
  check_launch(name, params);
}

template <class T>
void gradients_of(const StatsBackwardParams& params, const StatsWorkspace& workspace,
                  cudaStream_t stream) {
  const GradientArguments<T> args{.in = simt::map_inputs<T>(params),
                                  .dstats = rows_of<const float>(params.dstats),
                                  .rows = workspace.rows,
                                  .minus_dlambda = workspace.minus_dlambda,
                                  .scale = static_cast<float>(params.scale),
                                  .scale2 = static_cast<float>(params.scale2),
                                  .dq1 = rows_of<T>(params.dq1),
                                  .dq2 = rows_of<T>(params.dq2),
                                  .dk1 = rows_of<T>(params.dk1),
                                  .dk2 = rows_of<T>(params.dk2)};
  launch<T>(stats_rows_kernel<T>, "statistics backward over rows", args, params.heads, params.seq_q,
            params, stream);
  if (!params.dk1 && !params.dk2) return;
  launch<T>(stats_keys_kernel<T>, "statistics backward over keys", args, params.kv_heads,
            params.seq_k, params, stream);
}

}  // namespace

void stats_gradients(const StatsBackwardParams& params, const StatsWorkspace& workspace,
                     cudaStream_t stream) {
  switch (params.dtype) {
    case Dtype::kBFloat16: return gradients_of<bfloat16>(params, workspace, stream);
    case Dtype::kFloat16: return gradients_of<float16>(params, workspace, stream);
    default: return gradients_of<float>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda
