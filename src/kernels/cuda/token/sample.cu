// SPDX-License-Identifier: Apache-2.0
//
// Chooses the next token of each row. One block per row:
//
//   (1) penalise the logits; find the largest, and the log-sum-exp of the unpenalised ones
//   (2) temperature 0: take the largest
//   (3) else weights w = exp((logit - largest) / temperature), and the lowest logit that top_k and
//       top_p keep, by bisection on the bits of a float
//   (4) draw a number below the kept weights' sum and take the token that it falls on
//
// Weights are integers, in 2^-40 of the largest one. Sums are then the same in any order.

#include <cmath>
#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/token/launch.cuh"
#include "kernels/token_step.h"

namespace diffattn::cuda::token {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBatch = 16;  // logits that a thread loads at once
using Weight = unsigned long long;

/// Maps floats to integers of the same order.
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

template <class T, class Combine>
__device__ T reduce_block(T value, T* smem, Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = value;
  __syncthreads();  // every warp has stored its value
  value = smem[threadIdx.x % 32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  __syncthreads();  // every thread has read smem; the caller may use it again
  return value;
}

/// Returns e^x with a relative error of about 2^-21, for the log-sum-exp.
__device__ float exp(float x) { return ptx::exp2(x * kLog2E); }

__device__ Weight add(Weight x, Weight y) { return x + y; }

struct Sampler {
  const Sampling& sampling;
  const int row;
  Weight* smem;  // [kWarps]
  const SamplingRule rule = sampling.rules[row];
  const int size = sampling.vocabulary;
  const float* const logits = sampling.logits + int64_t{row} * size;
  const uint16_t* const counts = sampling.counts + int64_t{row} * size;
  const bool penalised = rule.repetition != 1.0f || rule.presence != 0.0f || rule.frequency != 0.0f;
  float largest = 0.0f;

  __device__ float penalised_logit(int i) const { return penalise(logits[i], i); }

  __device__ float penalise(float x, int i) const {
    if (!penalised) return x;
    const uint16_t count = counts[i];
    if (count == 0) return x;
    x = x > 0.0f ? x / rule.repetition : x * rule.repetition;
    const int generated = count & ~Sampling::kInPrompt;
    if (generated == 0) return x;
    return x - rule.presence - rule.frequency * static_cast<float>(generated);
  }

  __device__ Weight weight_of(float logit) const {
    return static_cast<Weight>(expf((logit - largest) / rule.temperature) * 0x1p40f);
  }

  __device__ Chosen run(uint64_t step) {
    // (1) The thread's largest logit, and of equal ones the first.
    float best_logit = -INFINITY;
    int best_token = static_cast<int>(threadIdx.x);
    float top = -INFINITY, sum = 0.0f;
    bool finite = true;
    for (int first = static_cast<int>(threadIdx.x); first < size; first += kBatch * kThreads) {
      float raw[kBatch], batch_top = top;  // loads many logits before it uses the first one
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * kThreads;
        raw[j] = i < size ? logits[i] : -INFINITY;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * kThreads;
        if (i >= size) break;
        finite &= raw[j] < INFINITY;  // false for NaN
        batch_top = fmaxf(batch_top, raw[j]);
        const float x = penalise(raw[j], i);
        if (x > best_logit) best_logit = x, best_token = i;
      }
      if (batch_top == -INFINITY) continue;
      sum *= exp(top - batch_top);
      top = batch_top;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) sum += exp(raw[j] - top);
    }
    // A key and an index in one integer.
    Weight best =
        Weight{key_of(best_logit)} << 32 | (0xffffffffu - static_cast<uint32_t>(best_token));
    best = reduce_block(best, smem, [](Weight x, Weight y) { return max(x, y); });
    const int likeliest = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    const float raw_top = reduce_block(top, reinterpret_cast<float*>(smem),
                                       [](float x, float y) { return fmaxf(x, y); });
    finite = __syncthreads_and(finite ? 1 : 0) != 0 && raw_top > -INFINITY;
    if (!finite) return {-1, 0.0f};
    const float scaled = top == -INFINITY ? 0.0f : sum * exp(top - raw_top);
    const float total = reduce_block(scaled, reinterpret_cast<float*>(smem),
                                     [](float x, float y) { return x + y; });
    largest = penalised_logit(likeliest);
    const int token = rule.temperature == 0.0f ? likeliest : draw(step);  // (2)
    return {token, logits[token] - raw_top - logf(total)};
  }

  /// Returns the sum of `value(key, logit)` over all tokens whose key is at least `least`.
  template <class Value>
  __device__ Weight sum_from(uint32_t least, Value value) const {
    Weight sum = 0;
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      const float x = penalised_logit(i);
      if (key_of(x) >= least) sum += value(x);
    }
    return reduce_block(sum, smem, add);
  }

  /// Returns the largest key k, from `least` on, for which the sum from k on reaches `wanted`.
  template <class Value>
  __device__ uint32_t bisect(uint32_t least, Weight wanted, Value value) const {
    uint32_t low = least, high = key_of(largest);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2 + 1;
      if (sum_from(middle, value) >= wanted) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  __device__ int draw(uint64_t step) {
    const auto weight = [this](float x) { return weight_of(x); };
    uint32_t least = 0;  // (3)
    if (rule.top_k > 0 && rule.top_k < size) {
      least = bisect(0, static_cast<Weight>(rule.top_k), [](float) { return Weight{1}; });
    }
    Weight kept = sum_from(least, weight);
    if (rule.top_p < 1.0f) {
      const auto wanted = static_cast<Weight>(static_cast<double>(rule.top_p) * kept);
      least = bisect(least, max(wanted, Weight{1}), weight);
      kept = sum_from(least, weight);
    }
    return token_at(__umul64hi(random_bits(rule.seed, step), kept), least);  // (4)
  }

  /// Returns the token at which the running sum of the kept weights, in the order of the
  /// vocabulary, exceeds `target`.
  __device__ int token_at(Weight target, uint32_t least) const {
    __shared__ int found;
    const int share = (size + kThreads - 1) / kThreads;
    const int begin = min(size, static_cast<int>(threadIdx.x) * share);
    const int end = min(size, begin + share);
    const auto kept = [&](int i) {
      const float x = penalised_logit(i);
      return key_of(x) >= least ? weight_of(x) : Weight{0};
    };
    Weight mine = 0;
    for (int i = begin; i < end; ++i) mine += kept(i);
    Weight before = mine;  // inclusive sum over the warp's lanes
    for (int offset = 1; offset < 32; offset *= 2) {
      const Weight other = __shfl_up_sync(0xffffffffu, before, offset);
      if (static_cast<int>(threadIdx.x % 32) >= offset) before += other;
    }
    if (threadIdx.x % 32 == 31) smem[threadIdx.x / 32] = before;
    __syncthreads();  // every warp has stored its sum
    for (int w = 0; w < static_cast<int>(threadIdx.x / 32); ++w) before += smem[w];
    before -= mine;
    if (target >= before && target < before + mine) {
      int i = begin;
      for (Weight sum = before + kept(i); sum <= target; sum += kept(i)) ++i;
      found = i;
    }
    __syncthreads();  // the thread that found the token has stored it
    return found;
  }
};

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const Batch batch, const __grid_constant__ Sampling sampling) {
  __shared__ Weight smem[kWarps];
  ptx::launch_dependents();
  // Nothing in this step has written the row's state and its rule.
  const int row = static_cast<int>(blockIdx.x), step = sampling.steps[row];
  const int position = batch.positions[row];
  Sampler sampler{sampling, row, smem};
  ptx::wait_for_previous_kernel();
  if (step < 0) return;
  const Chosen chosen = sampler.run(static_cast<uint64_t>(step));
  if (threadIdx.x != 0) return;
  sampling.chosen[row * Sampling::kRing + step % Sampling::kRing] = chosen;
  sampling.steps[row] = step + 1;
  if (chosen.token < 0) return;
  uint16_t& count = sampling.counts[int64_t{row} * sampling.vocabulary + chosen.token];
  if ((count & ~Sampling::kInPrompt) != 0x7fff) ++count;
  batch.tokens[row] = chosen.token;
  batch.positions[row] = position + 1;
  batch.lengths[row] = position + 2;
}

}  // namespace

void sample(const Batch& batch, const Sampling& sampling, Stream stream) {
  launch_step(sample_kernel, static_cast<unsigned>(batch.rows), kThreads, 0,
              static_cast<cudaStream_t>(stream), "token sample", batch, sampling);
}

}  // namespace diffattn::cuda::token
