// SPDX-License-Identifier: Apache-2.0
//
// AdamW on many tensors, without a word to the host between its three kernels:
//
//   1. square_sums: sum of g^2 of each chunk
//   2. decide (one block): norm = sqrt(all sums), the clipping factor c, or "skip"; counts the step
//   3. update: with g' = c g and t the step,
//        p -= lr decay p
//        m = b1 m + (1 - b1) g',  v = b2 v + (1 - b2) g'^2
//        p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//      and the copy of p in bfloat16.
//
// Sums are in float within a chunk and in double across chunks, always in the same order.

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/optimizer.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kElements = 4;
constexpr float kSkip = -1.0f;  // a factor that stands for "do not update"

using Wide = Pack<float, kElements>;
using Narrow = Pack<bfloat16, kElements>;

/// Calls vector(i) for this thread's groups of 4 elements of a chunk that begin at i, and single(i)
/// for the elements that are left, which are all if the tensor has no aligned vectors.
template <class Vector, class Single>
__device__ inline void for_elements(const AdamWTensor& tensor, const AdamWChunk& chunk,
                                    const Vector& vector, const Single& single) {
  const int64_t begin = int64_t{chunk.part} * kAdamWChunk;
  const int64_t end = min(tensor.count, begin + kAdamWChunk);
  const int64_t middle = tensor.vectors ? end - end % kElements : begin;
  for (int64_t i = begin + int64_t{threadIdx.x} * kElements; i < middle;
       i += kThreads * kElements) {
    vector(i);
  }
  for (int64_t i = middle + threadIdx.x; i < end; i += kThreads) single(i);
}

__device__ inline Wide load_vector(const float* data, int64_t at) {
  return *reinterpret_cast<const Wide*>(data + at);
}

__device__ inline Wide gradient_vector(const AdamWTensor& tensor, int64_t at) {
  if (tensor.wide_gradient) return load_vector(static_cast<const float*>(tensor.gradient), at);
  const Narrow pack =
      *reinterpret_cast<const Narrow*>(static_cast<const bfloat16*>(tensor.gradient) + at);
  Wide values;
#pragma unroll
  for (int j = 0; j < kElements; ++j) values.values[j] = widen(pack.values[j]);
  return values;
}

__device__ inline float gradient_element(const AdamWTensor& tensor, int64_t at) {
  if (tensor.wide_gradient) return static_cast<const float*>(tensor.gradient)[at];
  return widen(static_cast<const bfloat16*>(tensor.gradient)[at]);
}

/// The numbers of an update that all elements of a tensor share.
struct Update {
  float factor, beta1, rest1, beta2, rest2, keep, size, root, eps;

  __device__ void apply(float gradient, float& parameter, float& m, float& v) const {
    const float g = gradient * factor;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    parameter = keep * parameter - size * m / (sqrtf(v) * root + eps);
  }
};

__global__ void __launch_bounds__(kThreads) square_sums_kernel(AdamWStep p) {
  __shared__ float scratch[32];
  const AdamWChunk chunk = p.chunks[blockIdx.x];
  const AdamWTensor tensor = p.tensors[chunk.tensor];
  float sum = 0.0f;
  if (tensor.gradient != nullptr) {
    for_elements(
        tensor, chunk,
        [&](int64_t i) {
          const Wide g = gradient_vector(tensor, i);
#pragma unroll
          for (int j = 0; j < kElements; ++j) sum += g.values[j] * g.values[j];
        },
        [&](int64_t i) {
          const float g = gradient_element(tensor, i);
          sum += g * g;
        });
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) p.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) decide_kernel(AdamWStep p) {
  __shared__ double sums[kThreads];
  __shared__ bool updates;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < p.chunk_count; i += kThreads) sum += p.partial[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const auto norm = static_cast<float>(sqrt(sums[0]));
    const bool clips = p.max_norm > 0.0 && norm > p.max_norm;
    updates = isfinite(norm) && isfinite(*p.loss);
    *p.norm = norm;
    *p.factor = !updates ? kSkip : clips ? static_cast<float>(p.max_norm / (norm + 1e-6)) : 1.0f;
  }
  __syncthreads();
  if (!updates) return;
  for (int64_t i = threadIdx.x; i < p.tensor_count; i += kThreads) {
    if (p.tensors[i].gradient != nullptr) *p.tensors[i].step += 1.0f;
  }
}

__global__ void __launch_bounds__(kThreads) update_kernel(AdamWStep p) {
  const float factor = *p.factor;
  const AdamWChunk chunk = p.chunks[blockIdx.x];
  const AdamWTensor tensor = p.tensors[chunk.tensor];
  if (factor == kSkip || tensor.gradient == nullptr) return;
  __shared__ float shared_size, shared_root;
  if (threadIdx.x == 0) {
    const double step = *tensor.step;
    shared_size = static_cast<float>(p.learning_rate / (1.0 - pow(p.beta1, step)));
    shared_root = static_cast<float>(1.0 / sqrt(1.0 - pow(p.beta2, step)));
  }
  __syncthreads();
  const Update update{.factor = factor,
                      .beta1 = static_cast<float>(p.beta1),
                      .rest1 = static_cast<float>(1.0 - p.beta1),
                      .beta2 = static_cast<float>(p.beta2),
                      .rest2 = static_cast<float>(1.0 - p.beta2),
                      .keep = static_cast<float>(1.0 - p.learning_rate * tensor.weight_decay),
                      .size = shared_size,
                      .root = shared_root,
                      .eps = static_cast<float>(p.eps)};
  auto* copy = static_cast<bfloat16*>(tensor.copy);
  for_elements(
      tensor, chunk,
      [&](int64_t i) {
        const Wide g = gradient_vector(tensor, i);
        Wide w = load_vector(tensor.parameter, i);
        Wide m = load_vector(tensor.exp_avg, i), v = load_vector(tensor.exp_avg_sq, i);
        Narrow rounded;
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
          update.apply(g.values[j], w.values[j], m.values[j], v.values[j]);
          rounded.values[j] = narrow<bfloat16>(w.values[j]);
        }
        *reinterpret_cast<Wide*>(tensor.parameter + i) = w;
        *reinterpret_cast<Wide*>(tensor.exp_avg + i) = m;
        *reinterpret_cast<Wide*>(tensor.exp_avg_sq + i) = v;
        if (copy != nullptr) *reinterpret_cast<Narrow*>(copy + i) = rounded;
      },
      [&](int64_t i) {
        update.apply(gradient_element(tensor, i), tensor.parameter[i], tensor.exp_avg[i],
                     tensor.exp_avg_sq[i]);
        if (copy != nullptr) copy[i] = narrow<bfloat16>(tensor.parameter[i]);
      });
}

}  // namespace

void adamw(const AdamWStep& params, void* stream) {
  if (params.chunk_count == 0) return;
  const auto blocks = static_cast<unsigned>(params.chunk_count);
  const auto queue = static_cast<cudaStream_t>(stream);
  square_sums_kernel<<<blocks, kThreads, 0, queue>>>(params);
  decide_kernel<<<1, kThreads, 0, queue>>>(params);
  update_kernel<<<blocks, kThreads, 0, queue>>>(params);
  check_layer_launch("adamw", params.chunk_count * kAdamWChunk);
}

}  // namespace diffattn::cuda
