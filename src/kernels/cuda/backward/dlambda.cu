// SPDX-License-Identifier: Apache-2.0
//
// dlambda[entry] = -sum over the rows (b, m, h) that shared the entry of lambda. Few
// entries: a block each, whose threads take every kThreads-th row and meet in a fixed tree. Many:
// a thread each.

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/check.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kManyEntries = 4096;

/// One of the axes b, m, h: its size goes either to the entries or to the rows that share one.
struct Axis {
  int entries, shared;
};

struct DlambdaArguments {
  Shape shape;
  Rows<const float> minus_rows;  // [B, M, H]
  Rows<float> dlambda;           // strides 0 where it is broadcast
  Axis b, m, h;
  int entries, shared;  // products over the axes; `takes` keeps B * M * H below 2^31
  bool block_per_entry;
};

__device__ float shared_sum(const DlambdaArguments& args, int b0, int m0, int h0, int first,
                            int step) {
  float sum = 0.0f;
  for (int i = first; i < args.shared; i += step) {
    const int m = m0 + i % args.m.shared;
    const int b = b0 + i / args.m.shared % args.b.shared;
    const int h = h0 + i / args.m.shared / args.b.shared;
    const Sequence seq = args.shape.sequence(b);
    if (m < seq.seq_q) sum -= *args.minus_rows.at(b, seq.q_begin + m, h);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    dlambda_kernel(const __grid_constant__ DlambdaArguments args) {
  __shared__ float parts[kThreads];
  const int thread = threadIdx.x;
  const int entry = args.block_per_entry ? blockIdx.x : blockIdx.x * kThreads + thread;
  if (entry >= args.entries) return;  // whole blocks when a block shares an entry
  const int h = entry % args.h.entries;
  const int m = entry / args.h.entries % args.m.entries;
  const int b = entry / args.h.entries / args.m.entries;
  const Sequence seq = args.shape.sequence(b);
  const bool exists = m < seq.seq_q || args.dlambda.seq_stride == 0;
  float* const out = args.dlambda.at(b, seq.q_begin + m, h);
  if (!args.block_per_entry) {
    if (exists) *out = shared_sum(args, b, m, h, 0, 1);
    return;
  }
  parts[thread] = shared_sum(args, b, m, h, thread, kThreads);
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();  // the sums of the last round are there
    if (thread < width) parts[thread] += parts[thread + width];
  }
  if (thread == 0 && exists) *out = parts[0];
}

}  // namespace

void reduce_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream) {
  reduce_dlambda(params, params.dlambda, workspace.state.minus_dlambda, stream);
}

void reduce_dlambda(const Problem& problem, const View<void>& out, const Rows<float>& minus_rows,
                    cudaStream_t stream) {
  if (!out) return;
  const auto axis = [](int64_t size, bool broadcast) {
    const int n = static_cast<int>(size);
    return broadcast ? Axis{1, n} : Axis{n, 1};
  };
  // Packed rows of all sequences lie on one axis: lambda has it whole or not at all.
  const bool packed = problem.cu_seqlens_q != nullptr;
  const bool batch_broadcast = packed ? out.seq_stride == 0 : out.batch_stride == 0;
  DlambdaArguments args{.shape = shape_of(problem),
                        .minus_rows = {minus_rows.data, minus_rows.batch_stride,
                                       minus_rows.seq_stride, minus_rows.head_stride},
                        .dlambda = rows_of<float>(out),
                        .b = axis(problem.batch, batch_broadcast),
                        .m = axis(problem.seq_q, out.seq_stride == 0),
                        .h = axis(problem.heads, out.head_stride == 0)};
  args.entries = args.b.entries * args.m.entries * args.h.entries;
  args.shared = args.b.shared * args.m.shared * args.h.shared;
  args.block_per_entry = args.entries < kManyEntries;
  const int blocks = args.block_per_entry ? args.entries : (args.entries + kThreads - 1) / kThreads;
  if (blocks == 0) return;
  dlambda_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  check_launch("sum of dlambda", problem);
}

}  // namespace diffattn::cuda
