// SPDX-License-Identifier: Apache-2.0
//
// The sum of the residual stream with a branch, and its RMSNorm, in one pass:
//
//   h = x + branch,  r = 1 / sqrt(mean(h^2) + eps),  y = w h r
//
// and backward, with g = w dy:
//
//   dx = dh + r g - h r^3 mean(g h),  dw = sum over rows of dy h r
//
// A block owns a row: each thread holds 8 adjacent elements in registers, so a row is read once. A
// backward block takes every blocks-th row and keeps its share of dw in registers; a second kernel
// adds up the shares. Sums are in float, in an order that depends on the sizes alone.

#include <algorithm>

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/layers.h"

namespace diffattn::cuda {
namespace {

constexpr int kElements = 8;  // of a row per thread
constexpr int kBlockThreads = 1024;

template <class T>
__device__ inline void load(const void* data, int64_t at, float (&values)[kElements]) {
  constexpr int kCount = 16 / sizeof(T);
#pragma unroll
  for (int begin = 0; begin < kElements; begin += kCount) {
    const auto pack =
        *reinterpret_cast<const Pack<T, kCount>*>(static_cast<const T*>(data) + at + begin);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[begin + j] = widen(pack.values[j]);
  }
}

template <class T>
__device__ inline void store(void* data, int64_t at, const float (&values)[kElements]) {
  constexpr int kCount = 16 / sizeof(T);
#pragma unroll
  for (int begin = 0; begin < kElements; begin += kCount) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int j = 0; j < kCount; ++j) pack.values[j] = narrow<T>(values[begin + j]);
    *reinterpret_cast<Pack<T, kCount>*>(static_cast<T*>(data) + at + begin) = pack;
  }
}

template <class T, class Y>
__global__ void __launch_bounds__(kBlockThreads) add_rms_norm_kernel(AddRmsNorm p) {
  __shared__ float scratch[32];
  const int64_t column = int64_t{threadIdx.x} * kElements;
  const int64_t at = int64_t{blockIdx.x} * p.width + column;
  const bool inside = column < p.width;
  float h[kElements] = {};
  if (inside) {
    load<T>(p.x, at, h);
    if (p.branch != nullptr) {
      float branch[kElements];
      load<Y>(p.branch, at, branch);
#pragma unroll
      for (int j = 0; j < kElements; ++j) h[j] = widen(narrow<T>(h[j] + branch[j]));
      store<T>(p.h, at, h);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kElements; ++j) squares += h[j] * h[j];
  const float mean = block_sum(squares, scratch) / static_cast<float>(p.width);
  const float rstd = 1.0f / sqrtf(mean + p.eps);
  if (threadIdx.x == 0) p.rstd[blockIdx.x] = rstd;
  if (!inside) return;
  float weight[kElements];
  load<float>(p.weight, column, weight);
#pragma unroll
  for (int j = 0; j < kElements; ++j) h[j] *= rstd * weight[j];
  store<Y>(p.y, at, h);
}

template <class T, class Y>
__global__ void __launch_bounds__(kBlockThreads)
    add_rms_norm_backward_kernel(AddRmsNormBackward p) {
  __shared__ float scratch[2][32];
  const int64_t column = int64_t{threadIdx.x} * kElements;
  const bool inside = column < p.width;
  float weight[kElements] = {}, dweight[kElements] = {};
  if (inside) load<float>(p.weight, column, weight);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    const int64_t at = row * p.width + column;
    float h[kElements] = {}, dy[kElements] = {}, dx[kElements] = {};
    if (inside) {
      load<T>(p.h, at, h);
      load<Y>(p.dy, at, dy);
      if (p.dh != nullptr) load<T>(p.dh, at, dx);
    }
    const float rstd = p.rstd[row];
    float dot = 0.0f;
#pragma unroll
    for (int j = 0; j < kElements; ++j) dot += dy[j] * weight[j] * h[j];
    // A warp that is a row ahead writes the other half of the scratch memory.
    const float mean = block_sum(dot, scratch[turn]) / static_cast<float>(p.width);
    const float factor = mean * rstd * rstd * rstd;
    if (!inside) continue;
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      dx[j] += dy[j] * weight[j] * rstd - h[j] * factor;
      dweight[j] += dy[j] * h[j] * rstd;
    }
    store<T>(p.dx, at, dx);
  }
  if (inside) store<float>(p.shares, int64_t{blockIdx.x} * p.width + column, dweight);
}

constexpr int kSumColumns = 32, kSumRows = 32;

/// dweight = sum of the blocks' shares, always in the same order.
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    sum_shares_kernel(const float* shares, float* dweight, int blocks, int64_t width) {
  __shared__ float sums[kSumRows][kSumColumns];
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (int row = threadIdx.y; row < blocks; row += kSumRows) {
      sum += shares[row * width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int row = 1; row < kSumRows; ++row) sum += sums[row][threadIdx.x];
  dweight[column] = sum;
}

unsigned threads_of(int64_t width) {
  return static_cast<unsigned>((width / kElements + 31) / 32 * 32);
}

/// Calls run(T{}, Y{}) with the device types of the stream and of the branches.
template <class Run>
void with_types(Dtype dtype, Dtype y_dtype, const Run& run) {
  if (dtype == Dtype::kFloat32 && y_dtype == Dtype::kBFloat16) return run(float{}, bfloat16{});
  if (dtype != y_dtype)
    throw Error("add_rms_norm: dtype: expected one type, or float32 and bfloat16");
  with_element(dtype, [&](auto element) { run(element, element); });
}

}  // namespace

void add_rms_norm(const AddRmsNorm& params, void* stream) {
  if (params.rows == 0) return;
  with_types(params.dtype, params.y_dtype, [&](auto t, auto y) {
    add_rms_norm_kernel<decltype(t), decltype(y)>
        <<<static_cast<unsigned>(params.rows), threads_of(params.width), 0,
           static_cast<cudaStream_t>(stream)>>>(params);
  });
  check_layer_launch("add_rms_norm", params.rows * params.width);
}

void add_rms_norm_backward(const AddRmsNormBackward& params, void* stream) {
  if (params.rows == 0) return;
  with_types(params.dtype, params.y_dtype, [&](auto t, auto y) {
    add_rms_norm_backward_kernel<decltype(t), decltype(y)>
        <<<static_cast<unsigned>(params.blocks), threads_of(params.width), 0,
           static_cast<cudaStream_t>(stream)>>>(params);
  });
  const auto columns = static_cast<unsigned>((params.width + kSumColumns - 1) / kSumColumns);
  sum_shares_kernel<<<columns, dim3(kSumColumns, kSumRows), 0, static_cast<cudaStream_t>(stream)>>>(
      params.shares, params.dweight, static_cast<int>(params.blocks), params.width);
  check_layer_launch("add_rms_norm_backward", params.rows * params.width);
}

int64_t add_rms_norm_blocks(int64_t rows, int64_t width) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  // Enough threads of each multiprocessor to hide the latency of memory.
  const int64_t per_processor = std::max<int64_t>(1, 1024 / threads_of(width));
  return std::clamp<int64_t>(rows, 1, processors * per_processor);
}

}  // namespace diffattn::cuda
