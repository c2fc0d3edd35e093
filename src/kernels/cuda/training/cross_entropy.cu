// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy of rows of logits z, overwritten by its gradient:
//
//   lse = log sum exp(z),  loss = lse - (1 - e) z[label] - (e / V) sum(z) + c lse^2
//   dz = factor (exp(z - lse) (1 + 2 c lse) - (1 - e) [label] - e / V)
//
// A block owns a row and reads it twice: once for the running maximum and sums, once for the
// gradient, when the row is still in the L2 cache.

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/loss.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 512;

/// The largest of some numbers and the sum of exp(number - largest).
struct MaxSum {
  float largest = -INFINITY, sum = 0.0f;

  __device__ void add(const MaxSum& other) {
    const float both = fmaxf(largest, other.largest);
    if (both == -INFINITY) return;
    sum = sum * __expf(largest - both) + other.sum * __expf(other.largest - both);
    largest = both;
  }
};

/// Joins the values of all threads, in the same order every time.
__device__ inline MaxSum block_join(MaxSum value, MaxSum* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const MaxSum other{__shfl_xor_sync(~0u, value.largest, step),
                       __shfl_xor_sync(~0u, value.sum, step)};
    value.add(other);
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  MaxSum all = scratch[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) all.add(scratch[warp]);
  return all;
}

template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropy p) {
  constexpr int kCount = 16 / sizeof(T);
  using P = Pack<T, kCount>;
  __shared__ MaxSum scratch[kThreads / 32];
  __shared__ float sums[32];
  T* logits = static_cast<T*>(p.logits) + int64_t{blockIdx.x} * p.classes;
  auto* packs = reinterpret_cast<P*>(logits);
  const auto count = static_cast<int>(p.classes / kCount);
  const int64_t label = p.labels[blockIdx.x];
  if (label == p.ignored) {
    if (threadIdx.x == 0) p.loss[blockIdx.x] = 0.0f;
    if (p.factor == nullptr) return;
    for (int i = threadIdx.x; i < count; i += kThreads) packs[i] = P{};
    return;
  }

  MaxSum own;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const P pack = packs[i];
    MaxSum group;
#pragma unroll
    for (int j = 0; j < kCount; ++j) group.largest = fmaxf(group.largest, widen(pack.values[j]));
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      group.sum += __expf(widen(pack.values[j]) - group.largest);
      sum += widen(pack.values[j]);
    }
    own.add(group);
  }
  const MaxSum all = block_join(own, scratch);
  sum = block_sum(sum, sums);
  const float lse = all.largest + logf(all.sum);
  const bool in_range = label >= 0 && label < p.classes;
  const float uniform = p.smoothing / static_cast<float>(p.classes);
  if (threadIdx.x == 0) {
    const float target = in_range ? widen(logits[label]) : NAN;
    p.loss[blockIdx.x] = lse - (1.0f - p.smoothing) * target - uniform * sum + p.z_loss * lse * lse;
  }
  if (p.factor == nullptr) return;
  __syncthreads();  // the loss has read the label's logit
  const float factor = *p.factor, share = factor * (1.0f + 2.0f * p.z_loss * lse);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    P pack = packs[i];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float dz = share * __expf(widen(pack.values[j]) - lse) - factor * uniform;
      if (int64_t{i} * kCount + j == label) dz -= factor * (1.0f - p.smoothing);
      pack.values[j] = narrow<T>(dz);
    }
    packs[i] = pack;
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& params, void* stream) {
  if (params.rows == 0) return;
  with_element(params.dtype, [&](auto element) {
    cross_entropy_kernel<decltype(element)>
        <<<static_cast<unsigned>(params.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            params);
  });
  check_layer_launch("cross_entropy", params.rows * params.classes);
}

}  // namespace diffattn::cuda
