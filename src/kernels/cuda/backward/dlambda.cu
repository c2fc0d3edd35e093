// SPDX-License-Identifier: Apache-2.0
//
// dlambda[entry] = -sum of minus_rows[b, m, h] over the rows that share the entry of lambda.
//
// With many entries (kManyEntries or more), one thread sums each entry. With few, one block sums
// each part of kPartRows rows of an entry by a fixed tree; if an entry has several parts, a second
// kernel sums them with one block per entry. The order of summation is always the same.

#include <algorithm>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/check.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kManyEntries = 4096;
constexpr int kPartRows = 4 * kThreads;  // rows per block; more would expose the memory latency

/// One of the axes b, m, h. If lambda has the axis, `entries` is its size; if lambda is broadcast
/// along it, `shared` is its size. The other number is 1.
struct Axis {
  int entries, shared;
};

struct DlambdaArguments {
  Shape shape;
  Rows<const float> minus_rows;  // [B, M, H]
  Rows<float> dlambda;           // stride 0 along broadcast axes
  Axis b, m, h;
  int entries, shared;  // products over the axes; `takes` keeps B * M * H below 2^31
  int parts;            // blocks per entry; 0 means one thread per entry
  float* sums;          // [entries, parts], used if parts > 1
};

/// One entry of lambda.
struct Entry {
  int b, m, h;  // the first row that shares it
  float* out;   // its gradient; null if the row does not exist

  __device__ Entry(const DlambdaArguments& args, int number)
      : b(number / args.h.entries / args.m.entries),
        m(number / args.h.entries % args.m.entries),
        h(number % args.h.entries) {
    const Sequence seq = args.shape.sequence(b);
    const bool exists = m < seq.seq_q || args.dlambda.seq_stride == 0;
    out = exists ? args.dlambda.at(b, seq.q_begin + m, h) : nullptr;
  }
};

/// Returns the sum over rows first, first + step, ..., below `end`, of those that share the entry.
__device__ float shared_sum(const DlambdaArguments& args, const Entry& entry, int first, int end,
                            int step) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = first; i < end; i += step) {
    const int m = entry.m + i % args.m.shared;
    const int b = entry.b + i / args.m.shared % args.b.shared;
    const int h = entry.h + i / args.m.shared / args.b.shared;
    const Sequence seq = args.shape.sequence(b);
    if (m < seq.seq_q) sum -= *args.minus_rows.at(b, seq.q_begin + m, h);
  }
  return sum;
}

/// Returns the sum over the block's threads by a fixed tree; valid in thread 0.
__device__ float block_sum(float x) {
  __shared__ float sums[kThreads];
  const int thread = threadIdx.x;
  sums[thread] = x;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();  // all threads have written the sums of the previous round
    if (thread < width) sums[thread] += sums[thread + width];
  }
  return sums[0];
}

__global__ void __launch_bounds__(kThreads)
    dlambda_kernel(const __grid_constant__ DlambdaArguments args) {
  const bool by_blocks = args.parts != 0;
  const int number = by_blocks ? blockIdx.x / args.parts : blockIdx.x * kThreads + threadIdx.x;
  if (number >= args.entries) return;  // with by_blocks, all threads of a block return together
  const Entry entry(args, number);
  if (!by_blocks) {
    if (entry.out != nullptr) *entry.out = shared_sum(args, entry, 0, args.shared, 1);
    return;
  }
  const int first = blockIdx.x % args.parts * kPartRows;
  const int end = first + min(args.shared - first, kPartRows);
  const float sum = block_sum(shared_sum(args, entry, first + threadIdx.x, end, kThreads));
  if (threadIdx.x != 0) return;
  if (args.parts > 1) {
    args.sums[blockIdx.x] = sum;
  } else if (entry.out != nullptr) {
    *entry.out = sum;
  }
}

/// Sums the parts of each entry, with one block per entry.
__global__ void __launch_bounds__(kThreads)
    dlambda_parts_kernel(const __grid_constant__ DlambdaArguments args) {
  const float* const sums = args.sums + static_cast<int64_t>(blockIdx.x) * args.parts;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < args.parts; i += kThreads) sum += sums[i];
  sum = block_sum(sum);
  const Entry entry(args, blockIdx.x);
  if (threadIdx.x == 0 && entry.out != nullptr) *entry.out = sum;
}

/// Fills the arguments except minus_rows and sums.
DlambdaArguments dlambda_arguments(const Problem& problem, const View<void>& out) {
  const auto axis = [](int64_t size, bool broadcast) {
    const int n = static_cast<int>(size);
    return broadcast ? Axis{1, n} : Axis{n, 1};
  };
  // Packed sequences have one axis for all rows, so lambda has both axes b and m, or neither.
  const bool packed = problem.cu_seqlens_q != nullptr;
  const bool batch_broadcast = packed ? out.seq_stride == 0 : out.batch_stride == 0;
  DlambdaArguments args{.shape = shape_of(problem),
                        .dlambda = rows_of<float>(out),
                        .b = axis(problem.batch, batch_broadcast),
                        .m = axis(problem.seq_q, out.seq_stride == 0),
                        .h = axis(problem.heads, out.head_stride == 0)};
  args.entries = args.b.entries * args.m.entries * args.h.entries;
  args.shared = args.b.shared * args.m.shared * args.h.shared;
  const bool many = args.entries >= kManyEntries;
  args.parts = many ? 0 : std::max(1, (args.shared - 1) / kPartRows + 1);
  return args;
}

}  // namespace

int64_t dlambda_part_bytes(const Problem& problem, const View<void>& dlambda) {
  if (!dlambda) return 0;
  const DlambdaArguments args = dlambda_arguments(problem, dlambda);
  return args.parts > 1 ? int64_t{4} * args.entries * args.parts : 0;
}

void reduce_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream) {
  reduce_dlambda(params, params.dlambda, workspace.state.minus_dlambda, workspace.dlambda_parts,
                 stream);
}

void reduce_dlambda(const Problem& problem, const View<void>& out, const Rows<float>& minus_rows,
                    float* parts, cudaStream_t stream) {
  if (!out) return;
  DlambdaArguments args = dlambda_arguments(problem, out);
  args.minus_rows = {minus_rows.data, minus_rows.batch_stride, minus_rows.seq_stride,
                     minus_rows.head_stride};
  args.sums = parts;
  const int blocks =
      args.parts != 0 ? args.entries * args.parts : (args.entries + kThreads - 1) / kThreads;
  if (blocks == 0) return;
  dlambda_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  check_launch("sum of dlambda", problem);
  if (args.parts <= 1) return;
  dlambda_parts_kernel<<<static_cast<unsigned>(args.entries), kThreads, 0, stream>>>(args);
  check_launch("sum of dlambda's parts", problem);
}

}  // namespace diffattn::cuda
