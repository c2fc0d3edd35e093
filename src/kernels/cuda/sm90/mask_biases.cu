// SPDX-License-Identifier: Apache-2.0
//
// Converts an additive mask [B, H, M, N] into the biases of mask_biases.h. One warp writes one
// block of [16, columns] biases; the grid's y and z are the heads and batch entries of the copy.

#include "kernels/cuda/sm90/mask_biases.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/sm90/mask_copies.h"

namespace diffattn::cuda::sm90 {
namespace {

/// Converts one mask value. A float result is in base 2. A narrow result is clamped from below, so
/// that a finite value stays finite when the kernel multiplies it by log2(e).
template <class Out, class M>
__device__ inline Out bias_of(M x) {
  constexpr float kLowest = -0x1.62p127f;  // exact in bf16; below every float16
  const float bias = widen(x);
  if constexpr (__is_same(Out, float)) {
    return bias_to_base_2(bias);
  } else {
    return narrow<Out>(bias < kLowest && bias != -INFINITY ? kLowest : bias);
  }
}

/// Query m and key n of this lane's bias i in the block that begins at (row, column).
struct BiasIndex {
  int m, n;

  template <bool kByKeys>
  __device__ static BiasIndex of(int row, int column, int i) {
    const int lane = threadIdx.x % 32;
    const int r = row + lane / 4 + i / 2 % 2 * 8;
    const int c = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    return kByKeys ? BiasIndex{c, r} : BiasIndex{r, c};
  }
};

template <class Out, class M, bool kByKeys>
__device__ inline void write_block(uint4* to, const HeadMask& mask, int row, int column,
                                   int columns) {
  constexpr int kAtOnce = 16 / sizeof(Out);
  const Sequence& seq = mask.seq;
  const MaskStrides& strides = mask.shape.mask.strides;
  const M* const data = static_cast<const M*>(mask.shape.mask.data) + mask.head;
#pragma unroll 2
  for (int first = 0; first < columns / 2; first += kAtOnce) {
    union {
      Out numbers[kAtOnce];
      uint4 piece;
    };
    M raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const BiasIndex at = BiasIndex::of<kByKeys>(row, column, first + i);
      // Clamp indices past the end to valid memory; the loop below replaces these values by -inf.
      raw[i] =
          data[min(at.m, seq.seq_q - 1) * strides.row + min(at.n, seq.seq_k - 1) * strides.column];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const BiasIndex at = BiasIndex::of<kByKeys>(row, column, first + i);
      const bool inside = at.m < seq.seq_q && at.n < seq.end_visible(at.m);
      numbers[i] = inside ? bias_of<Out>(raw[i]) : narrow<Out>(-INFINITY);
    }
    to[first / kAtOnce * 32 + threadIdx.x % 32] = piece;
  }
}

/// Each warp writes one block of biases.
template <class Out, bool kByKeys>
__global__ void __launch_bounds__(kCopyThreads)
    biases_kernel(const __grid_constant__ Shape shape, MaskBiases biases) {
  const int64_t warp = (blockIdx.x * int64_t{kCopyThreads} + threadIdx.x) / 32;
  const auto row_block = static_cast<int>(warp % biases.row_blocks);
  const auto column_block = warp / biases.row_blocks;
  if (column_block >= biases.column_blocks) return;
  const int h = blockIdx.y, b = blockIdx.z;
  const HeadMask mask(shape, shape.sequence(b), b, h);
  const int row = row_block * MaskBiases::kRows;
  const int column = static_cast<int>(column_block) * biases.columns;
  uint4* const to = biases.data + b * biases.batch_stride + h * biases.head_stride +
                    column_block * biases.column_stride + row_block * biases.row_stride;
  if constexpr (!__is_same(Out, float)) {
    write_block<Out, Out, kByKeys>(to, mask, row, column, biases.columns);
  } else {
    const auto write = [&]<class M>(M) {
      write_block<float, M, kByKeys>(to, mask, row, column, biases.columns);
    };
    switch (shape.mask.dtype) {
      case Dtype::kFloat64: return write(double{});
      case Dtype::kFloat32: return write(float{});
      case Dtype::kBFloat16: return write(bfloat16{});
      case Dtype::kFloat16: return write(float16{});
    }
  }
}

template <class Out>
void launch(const MaskBiases& biases, const Problem& problem, cudaStream_t stream) {
  const int64_t warps = int64_t{biases.column_blocks} * biases.row_blocks;
  const dim3 grid = blocks_for(problem, warps * 32);
  const auto kernel = biases.by_keys ? biases_kernel<Out, true> : biases_kernel<Out, false>;
  kernel<<<grid, kCopyThreads, 0, stream>>>(shape_of(problem), biases);
  check_launch("sm90: biases of the mask", problem);
}

}  // namespace

bool can_be_narrow(const Problem& problem) { return problem.mask.dtype == problem.dtype; }

MaskBiases::MaskBiases(const Problem& problem, bool by_keys, bool narrow, int padding, int columns,
                       void* memory)
    : columns(columns), by_keys(by_keys), narrow(narrow) {
  if (problem.mask.kind != MaskKind::kAdditive) return;
  const bool same_rows = problem.mask.strides.row == 0;  // all queries share one mask row
  data = static_cast<uint4*>(memory);
  block = kRows * columns * (narrow ? 2 : 4) / static_cast<int>(sizeof(uint4));
  const int64_t rows = ceil_div(by_keys ? problem.seq_k : problem.seq_q, padding) * padding / kRows;
  row_blocks = same_rows && !by_keys ? 1 : static_cast<int>(rows);
  row_stride = row_blocks == 1 ? 0 : block;
  const int64_t all_columns = by_keys ? problem.seq_q : problem.seq_k;
  column_blocks = same_rows && by_keys ? 1 : static_cast<int>(ceil_div(all_columns, columns));
  column_stride = column_blocks == 1 ? 0 : int64_t{block} * row_blocks;
  const int64_t head = int64_t{block} * row_blocks * column_blocks;
  head_stride = problem.mask.strides.head == 0 ? 0 : head;
  batch_stride = problem.mask.strides.batch == 0 ? 0 : head * mask_heads(problem);
}

size_t MaskBiases::bytes(const Problem& problem) const {
  return static_cast<size_t>(mask_batch(problem) * mask_heads(problem) * block * row_blocks *
                             column_blocks) *
         sizeof(uint4);
}

void make_biases(const MaskBiases& biases, const Problem& problem, cudaStream_t stream) {
  if (!biases.narrow) return launch<float>(biases, problem, stream);
  if (problem.dtype == Dtype::kBFloat16) return launch<bfloat16>(biases, problem, stream);
  launch<float16>(biases, problem, stream);
}

}  // namespace diffattn::cuda::sm90
