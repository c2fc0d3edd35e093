// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/sm90/forward/workspace.h"

#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/forward/config.h"

namespace diffattn::cuda::sm90 {
namespace {

constexpr int kClearThreads = 256;

/// Zeroes the item counter and the marks in `repair_marks`: `count` words of 16 bytes.
__global__ void __launch_bounds__(kClearThreads) clear_kernel(uint4* memory, int64_t count) {
  ptx::launch_dependents();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kClearThreads;
  for (int64_t i = blockIdx.x * int64_t{kClearThreads} + threadIdx.x; i < count; i += step) {
    memory[i] = {};
  }
}

}  // namespace

ForwardWorkspace::ForwardWorkspace(const ForwardParams& params, void* memory) {
  constexpr size_t kCounterBytes = 16;
  const int64_t tiles = tile_index_count(params, kConsumerRows);
  const bool packed = params.cu_seqlens_q != nullptr;
  marks = tiles * params.heads * (packed ? 1 : params.batch);
  cleared = (kCounterBytes + static_cast<size_t>(marks) + 15) / 16 * 16;
  constexpr int kKeys = kForwardKeys<64, 128>;
  words = RowWords(params, kItemRows, kKeys, static_cast<char*>(memory) + cleared);
  const bool narrow = has_narrow_biases(params);
  biases =
      MaskBiases(params, /*by_keys=*/false, narrow, kItemRows,
                 narrow ? kNarrowBiasKeys : kWideBiasKeys, static_cast<char*>(memory) + cleared);
  bytes = cleared + words.bytes(params, kKeys) + biases.bytes(params);
  state.next_item = static_cast<int*>(memory);
  state.repair_marks = static_cast<uint8_t*>(memory) + kCounterBytes;
  state.marks_per_head = static_cast<int>(tiles);
}

bool has_narrow_biases(const ForwardParams& params) {
  return can_be_narrow(params) && params.mask.strides.head != 0;
}

void clear(const ForwardWorkspace& work, const Problem& problem, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(work.cleared / 16);
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(64, (count + kClearThreads - 1) / kClearThreads));
  clear_kernel<<<blocks, kClearThreads, 0, stream>>>(reinterpret_cast<uint4*>(work.state.next_item),
                                                     count);
  check_launch("sm90 forward: clear", problem);
}

int64_t tile_index_count(const Problem& problem, int64_t rows) {
  if (problem.cu_seqlens_q != nullptr) return problem.total_q / rows + problem.batch + 1;
  return (problem.seq_q + rows - 1) / rows;
}

int heads_in_cache(const ForwardParams& params, int64_t heads) {
  constexpr int64_t kCacheShare = 32 << 20;  // bytes, of an L2 cache of 50 MB or more
  const int64_t keys = params.cu_seqlens_k != nullptr ? params.total_k : params.seq_k;
  const int64_t widths = 2 * params.head_dim + params.value_dim;
  const int64_t group = params.heads / params.kv_heads;
  return static_cast<int>(std::clamp<int64_t>(kCacheShare * group / (keys * widths * 2), 1, heads));
}

BoxedTensor boxed_q(const Problem& problem, const View<const void>& q) {
  const bool packed = problem.cu_seqlens_q != nullptr;
  return {q, packed ? 1 : problem.batch, packed ? problem.total_q : problem.seq_q, problem.heads,
          problem.head_dim};
}

BoxedTensor boxed_k(const Problem& problem, const View<const void>& k) {
  const bool packed = problem.cu_seqlens_k != nullptr;
  return {k, packed ? 1 : problem.batch, packed ? problem.total_k : problem.seq_k, problem.kv_heads,
          problem.head_dim};
}

BoxedTensor boxed_v(const ForwardParams& params) {
  BoxedTensor v = boxed_k(params, params.v);
  v.width = params.value_dim;
  return v;
}

BoxedTensor boxed_out(const ForwardParams& params, const View<void>& out) {
  BoxedTensor rows = boxed_q(params, {out.data, out.batch_stride, out.seq_stride, out.head_stride});
  rows.width = params.value_dim;
  return rows;
}

bool shares_k(const Problem& problem) {
  const View<const void>&a = problem.k1, &b = problem.k2;
  return a.data == b.data && a.batch_stride == b.batch_stride && a.seq_stride == b.seq_stride &&
         a.head_stride == b.head_stride;
}

int processor_count(const Problem& problem) {
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", problem);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute", problem);
  return processors;
}

}  // namespace diffattn::cuda::sm90
