// SPDX-License-Identifier: Apache-2.0
//
// lambda = exp(q1 . k1) - exp(q2 . k2) + init, and its gradients, each in one small launch: torch
// needs about twenty for the same, in every layer.

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/layers.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 64;  // a warp for each map

__global__ void lambda_vectors_kernel(LambdaVectors p) {
  __shared__ float exponentials[2];
  const int map = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const float* q = map == 0 ? p.q1 : p.q2;
  const float* k = map == 0 ? p.k1 : p.k2;
  float dot = 0.0f;
  for (int64_t i = lane; i < p.dim; i += 32) dot += q[i] * k[i];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
  if (lane == 0) p.exponentials[map] = exponentials[map] = expf(dot);
  __syncthreads();
  if (threadIdx.x == 0) *p.lambda = exponentials[0] - exponentials[1] + p.init;
}

__global__ void lambda_vectors_backward_kernel(LambdaVectorsBackward p) {
  const float d1 = *p.dlambda * p.exponentials[0], d2 = -*p.dlambda * p.exponentials[1];
  for (int64_t i = threadIdx.x; i < p.dim; i += kThreads) {
    p.gradients[i] = d1 * p.k1[i];
    p.gradients[p.dim + i] = d1 * p.q1[i];
    p.gradients[2 * p.dim + i] = d2 * p.k2[i];
    p.gradients[3 * p.dim + i] = d2 * p.q2[i];
  }
}

}  // namespace

void lambda_vectors(const LambdaVectors& params, void* stream) {
  lambda_vectors_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  check_layer_launch("lambda_vectors", params.dim);
}

void lambda_vectors_backward(const LambdaVectorsBackward& params, void* stream) {
  lambda_vectors_backward_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(params);
  check_layer_launch("lambda_vectors_backward", params.dim);
}

}  // namespace diffattn::cuda
