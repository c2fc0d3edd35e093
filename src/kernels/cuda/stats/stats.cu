// SPDX-License-Identifier: Apache-2.0
//
// Statistics of every row of A = p1 - lambda p2, [B, M, H, kStatCount]; params.h defines them. A
// block of 256 threads computes 32 rows of one (batch entry, head), 16 threads per row (layout in
// simt/tile.cuh), in two passes over the keys they may see:
//
//   (1) m, l of both maps
//   (2) p1, p2 and the sums over A
//
// Sums are in float and counts in int. The threads of a row combine theirs in a fixed order.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/stats/row.cuh"

namespace diffattn::cuda {
namespace {

using simt::kBlock;

template <class T>
struct StatsArguments {
  simt::MapInputs<T> in;
  float sparse_threshold;
  Rows<float> stats;  // [B, M, H, kStatCount]
};

template <class T>
struct Stats {
  const StatsArguments<T>& args;
  const simt::TileMaps<T> maps;
  const int h, m0;

  __device__ void run() const {
    if (m0 >= maps.seq.seq_q) return;
    simt::RowSoftmax p1[2], p2[2];
    maps.softmax(h, m0, p1, p2);  // (1)
    float lambda[2];
    for (int i = 0; i < 2; ++i) lambda[i] = exists(i) ? *row_of(args.in.lambda, i) : 0.0f;
    RowSums sums[2];
    maps.for_each_visible(h, m0, [&](int i, int n, float s1, float s2) {  // (2)
      sums[i].add(n, p1[i].probability(s1), p2[i].probability(s2), lambda[i],
                  args.sparse_threshold);
    });
    for (int i = 0; i < 2; ++i) {
      sums[i].reduce_row();
      if (exists(i) && maps.at.tx == 0) store(sums[i], row_of(args.stats, i));
    }
  }

  __device__ bool exists(int i) const { return m0 + maps.at.ty + 16 * i < maps.seq.seq_q; }

  template <class U>
  __device__ U* row_of(const Rows<U>& rows, int i) const {
    return rows.at(maps.b, maps.seq.q_begin + m0 + maps.at.ty + 16 * i, h);
  }

  __device__ static void store(const RowSums& sums, float* out) {
    const bool dead = sums.visible == 0;
    const float inverse_visible = dead ? 0.0f : 1.0f / static_cast<float>(sums.visible);
    out[kStatVisible] = static_cast<float>(sums.visible);
    out[kStatAbsSum] = sums.magnitude;
    out[kStatSquareSum] = sums.square;
    out[kStatNegativeMass] = sums.negative;
    out[kStatMax] = dead ? 0.0f : sums.top;
    out[kStatSparse] = static_cast<float>(sums.sparse) * inverse_visible;
    out[kStatFocus] = static_cast<float>(sums.focus) * inverse_visible;
    out[kStatCoverage] = static_cast<float>(sums.coverage) * inverse_visible;
    out[kStatEntropy] = sums.entropy();
    out[kStatSinkMass] = sums.sink;
    out[kStatCancelled] = sums.cancelled;
    out[kStatOverlap] = sums.overlap;
  }
};

template <class T>
__global__ void __launch_bounds__(simt::kThreads)
    stats_kernel(const __grid_constant__ StatsArguments<T> args, int tiles) {
  extern __shared__ __align__(128) float simt_smem[];
  const WorkTile work(blockIdx.x, args.in.shape.heads, tiles);
  const int tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  Stats<T>{args, {args.in, simt_smem, work.b}, work.h, tile * kBlock}.run();
}

template <class T>
void launch(const StatsParams& params, cudaStream_t stream) {
  const StatsArguments<T> args{simt::map_inputs<T>(params),
                               static_cast<float>(params.sparse_threshold),
                               rows_of<float>(params.stats)};
  const int bytes = 4 * simt::TileMaps<T>::smem_floats(args.in.shape.head_dim);
  const auto kernel = stats_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "statistics: shared memory", params);
  const int64_t tiles = (params.seq_q + kBlock - 1) / kBlock;
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * tiles);
  kernel<<<blocks, simt::kThreads, bytes, stream>>>(args, static_cast<int>(tiles));
  check_launch("statistics", params);
}

}  // namespace

void stats(const StatsParams& params, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_maps_taken(params);
  if (params.batch * params.heads * params.seq_q == 0) return;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (params.dtype) {
    case Dtype::kBFloat16: return launch<bfloat16>(params, cuda_stream);
    case Dtype::kFloat16: return launch<float16>(params, cuda_stream);
    default: return launch<float>(params, cuda_stream);
  }
}

}  // namespace diffattn::cuda
