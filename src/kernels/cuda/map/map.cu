// SPDX-License-Identifier: Apache-2.0
//
// Downsamples the maps p1, p2 and A = p1 - lambda p2 to a grid of cells. Each cell holds its entry
// of largest magnitude, with its sign. Three kernels, with blocks of 256 threads:
//
//   (1) map_softmax_kernel: m, l of both maps, to the workspace; 32 rows per block
//   (2) map_cells_kernel: the largest code of each cell; 32 rows x kColumns columns per block. It
//       combines each tile of 32 columns in shared memory and merges the result into global memory
//   (3) map_numbers_kernel: codes to numbers; one thread per cell
//
// A code is a float rotated left by one bit: magnitude bits first, then the sign. Codes compare as
// integers like magnitudes, with NaN as the largest. Of two entries with equal magnitude, the
// negative one has the larger code. atomicMax gives the same result in any order.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/stats/row.cuh"

namespace diffattn::cuda {
namespace {

using simt::kBlock;

constexpr int kMaps = 3;        // p1, p2, A
constexpr int kColumns = 1024;  // columns of a block
constexpr int kCellPitch = kBlock + 1;

struct PairSoftmax {
  simt::RowSoftmax p1, p2;
};

/// One axis of the grid: [begin, end), divided into `cells` equal parts.
struct Side {
  int begin, end, cells;

  __device__ int cell(int i) const {
    return static_cast<int>(static_cast<int64_t>(i - begin) * cells / (end - begin));
  }
};

template <class T>
struct MapArguments {
  simt::MapInputs<T> in;
  Side rows, columns;
  PairSoftmax* softmax;  // [B, H, rows.end - rows.begin]
  uint32_t* codes;       // [B, H, 3, rows.cells, columns.cells]

  __device__ PairSoftmax* softmax_row(int b, int h, int m) const {
    const int64_t head = static_cast<int64_t>(b) * in.shape.heads + h;
    return softmax + head * (rows.end - rows.begin) + (m - rows.begin);
  }
};

__device__ uint32_t code_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits << 1 | bits >> 31;
}
__device__ float number_of(uint32_t code) { return __uint_as_float(code >> 1 | code << 31); }

template <class T>
__global__ void __launch_bounds__(simt::kThreads)
    map_softmax_kernel(const __grid_constant__ MapArguments<T> args, int tiles) {
  extern __shared__ __align__(128) float simt_smem[];
  const WorkTile work(blockIdx.x, args.in.shape.heads, tiles);
  const simt::TileMaps<T> maps{args.in, simt_smem, work.b};
  const int m0 = args.rows.begin + work.tile * kBlock;
  const int end = min(args.rows.end, maps.seq.seq_q);
  if (m0 >= end) return;
  simt::RowSoftmax p1[2], p2[2];
  maps.softmax(work.h, m0, p1, p2);  // (1)
  for (int i = 0; i < 2; ++i) {
    const int m = m0 + maps.at.ty + 16 * i;
    if (m < end && maps.at.tx == 0) *args.softmax_row(work.b, work.h, m) = {p1[i], p2[i]};
  }
}

/// Step (2) for one block.
template <class T>
struct Cells {
  const MapArguments<T>& args;
  const simt::TileMaps<T> maps;
  const int h, m0, n_begin;
  uint32_t* const cells_smem = reinterpret_cast<uint32_t*>(
      maps.smem + simt::TileMaps<T>::smem_floats(maps.width));  // [3, 32, kCellPitch]

  __device__ void run() const {
    const int end_row = min(args.rows.end, maps.seq.seq_q);
    if (m0 >= end_row) return;
    const auto range = maps.visible_range(m0);
    const int begin = max(n_begin, range.begin / kBlock * kBlock);
    const int end = min(min(n_begin + kColumns, args.columns.end), range.end);
    if (begin >= end) return;
    PairSoftmax row[2];
    float lambda[2];
    for (int i = 0; i < 2; ++i) {
      const int m = min(m0 + maps.at.ty + 16 * i, end_row - 1);
      row[i] = *args.softmax_row(maps.b, h, m);
      lambda[i] = *args.in.lambda.at(maps.b, maps.seq.q_begin + m, h);
    }
    for (int n0 = begin; n0 < end; n0 += kBlock) add_tile(n0, end_row, row, lambda);
  }

  /// Computes (2) for the columns of [n0, n0 + 32) that are in the grid.
  __device__ void add_tile(int n0, int end_row, const PairSoftmax (&row)[2],
                           const float (&lambda)[2]) const {
    for (int i = threadIdx.x; i < kMaps * kBlock * kCellPitch; i += simt::kThreads) {
      cells_smem[i] = 0;
    }
    simt::Scores s1, s2;
    maps.scores(/*keys_own=*/false, h, m0, n0, s1, s2);  // its barriers also cover cells_smem
    const int row_cell = args.rows.cell(m0);
    const int column_cell = args.columns.cell(max(n0, args.columns.begin));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int m = m0 + maps.at.ty + 16 * i, n = n0 + maps.at.tx + 16 * j;
        const bool inside = m < end_row && n >= args.columns.begin && n < args.columns.end;
        if (!inside || s1[i][j] == -INFINITY) continue;
        const float p1 = row[i].p1.probability(s1[i][j]), p2 = row[i].p2.probability(s2[i][j]);
        uint32_t* const cell = cells_smem + (args.rows.cell(m) - row_cell) * kCellPitch +
                               (args.columns.cell(n) - column_cell);
        atomicMax(cell, code_of(p1));
        atomicMax(cell + kBlock * kCellPitch, code_of(p2));
        atomicMax(cell + 2 * kBlock * kCellPitch, code_of(difference(p1, p2, lambda[i])));
      }
    }
    __syncthreads();  // all threads have entered their codes
    flush(row_cell, column_cell);
    __syncthreads();  // all threads have read the cells; the next tile clears them
  }

  /// Merges the tile's cells into the grid in global memory.
  __device__ void flush(int row_cell, int column_cell) const {
    const int64_t head = static_cast<int64_t>(maps.b) * args.in.shape.heads + h;
    for (int i = threadIdx.x; i < kMaps * kBlock * kBlock; i += simt::kThreads) {
      const int which = i / kBlock / kBlock, r = i / kBlock % kBlock, c = i % kBlock;
      const uint32_t code = cells_smem[(which * kBlock + r) * kCellPitch + c];
      if (code == 0) continue;
      const int64_t line = (head * kMaps + which) * args.rows.cells + row_cell + r;
      atomicMax(args.codes + line * args.columns.cells + column_cell + c, code);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(simt::kThreads, 1)
    map_cells_kernel(const __grid_constant__ MapArguments<T> args, int row_tiles, int parts) {
  extern __shared__ __align__(128) float simt_smem[];
  const WorkTile work(blockIdx.x, args.in.shape.heads, row_tiles * parts);
  Cells<T>{args,
           {args.in, simt_smem, work.b},
           work.h,
           args.rows.begin + work.tile / parts * kBlock,
           (args.columns.begin / kBlock * kBlock) + work.tile % parts * kColumns}
      .run();
}

__global__ void __launch_bounds__(simt::kThreads)
    map_numbers_kernel(uint32_t* codes, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(simt::kThreads) + threadIdx.x;
  if (i < count) codes[i] = __float_as_uint(number_of(codes[i]));  // (3)
}

template <class T>
void launch(const MapParams& params, void* workspace, cudaStream_t stream) {
  const auto side = [](int64_t begin, int64_t end, int64_t cells) {
    return Side{static_cast<int>(begin), static_cast<int>(end), static_cast<int>(cells)};
  };
  const MapArguments<T> args{.in = simt::map_inputs<T>(params),
                             .rows = side(params.row_begin, params.row_end, params.rows),
                             .columns = side(params.col_begin, params.col_end, params.cols),
                             .softmax = static_cast<PairSoftmax*>(workspace),
                             .codes = static_cast<uint32_t*>(params.map)};
  const int64_t heads = params.batch * params.heads;
  const int64_t cells = heads * kMaps * params.rows * params.cols;
  check(cudaMemsetAsync(params.map, 0, static_cast<size_t>(cells) * sizeof(uint32_t), stream),
        "map: cudaMemsetAsync", params);
  const auto up = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t tiles = up(params.row_end - params.row_begin, kBlock);
  const int64_t parts = up(params.col_end - params.col_begin / kBlock * kBlock, kColumns);

  const int bytes = 4 * simt::TileMaps<T>::smem_floats(args.in.shape.head_dim);
  const auto softmax_kernel = map_softmax_kernel<T>;
  check(cudaFuncSetAttribute(softmax_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "map softmax: shared memory", params);
  softmax_kernel<<<static_cast<unsigned>(heads * tiles), simt::kThreads, bytes, stream>>>(
      args, static_cast<int>(tiles));
  check_launch("map softmax", params);

  const int cell_bytes = bytes + 4 * kMaps * kBlock * kCellPitch;
  const auto cells_kernel = map_cells_kernel<T>;
  check(cudaFuncSetAttribute(cells_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, cell_bytes),
        "map cells: shared memory", params);
  cells_kernel<<<static_cast<unsigned>(heads * tiles * parts), simt::kThreads, cell_bytes,
                 stream>>>(args, static_cast<int>(tiles), static_cast<int>(parts));
  check_launch("map cells", params);

  map_numbers_kernel<<<static_cast<unsigned>(up(cells, simt::kThreads)), simt::kThreads, 0,
                       stream>>>(args.codes, cells);
  check_launch("map numbers", params);
}

}  // namespace

size_t map_workspace_bytes(const MapParams& params) {
  return static_cast<size_t>(params.batch * params.heads * (params.row_end - params.row_begin)) *
         sizeof(PairSoftmax);
}

void map(const MapParams& params, void* workspace, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_maps_taken(params);
  const bool cells = params.batch * params.heads * params.rows * params.cols > 0;
  if (!cells) return;
  if (workspace == nullptr) {
    throw_argument_error("workspace", std::to_string(map_workspace_bytes(params)) + " bytes",
                         "null");
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (params.dtype) {
    case Dtype::kBFloat16: return launch<bfloat16>(params, workspace, cuda_stream);
    case Dtype::kFloat16: return launch<float16>(params, workspace, cuda_stream);
    default: return launch<float>(params, workspace, cuda_stream);
  }
}

}  // namespace diffattn::cuda
