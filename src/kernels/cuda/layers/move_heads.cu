// SPDX-License-Identifier: Apache-2.0
//
// Moves heads from one layout to another and rotates them:
//
//   (u, v) -> (u cos - v sin, v cos + u sin) for each pair of elements (i, i + dim / 2) of a head
//
// Each thread moves kCount elements of the first half of a head and their partners, 16 bytes each
// where strides allow it. A row of the grid is a group of heads.

#include "kernels/cuda/layers/pack.cuh"
#include "kernels/layers.h"

namespace diffattn::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int kCount>
__global__ void move_heads_kernel(const __grid_constant__ MoveHeads p) {
  const HeadMove& move = p.moves[blockIdx.y];
  const auto half = static_cast<uint32_t>(p.dim / 2), groups = half / kCount;
  const auto per_token = static_cast<uint32_t>(move.heads) * groups;
  const uint64_t index = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto token = static_cast<uint32_t>(index) / per_token;
  if (token >= p.tokens) return;
  const uint32_t unit = static_cast<uint32_t>(index) - token * per_token;
  const uint32_t head = unit / groups, first = (unit - head * groups) * kCount;
  const T* x =
      static_cast<const T*>(move.x) + token * move.token_stride + head * move.head_stride + first;
  T* y = static_cast<T*>(move.y) + token * move.y_token_stride + head * move.y_head_stride + first;
  auto a = *reinterpret_cast<const Pack<T, kCount>*>(x);
  auto b = *reinterpret_cast<const Pack<T, kCount>*>(x + half);
  if (move.rotated) {
    const int64_t row = int64_t{token % static_cast<uint32_t>(p.table_rows)} * half + first;
#pragma unroll
    for (int begin = 0; begin < kCount; begin += 4) {
      const auto cos = *reinterpret_cast<const Pack<float, 4>*>(p.cos + row + begin);
      const auto sin = *reinterpret_cast<const Pack<float, 4>*>(p.sin + row + begin);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float u = widen(a.values[begin + j]), v = widen(b.values[begin + j]);
        const float c = cos.values[j], s = sin.values[j] * p.direction;
        a.values[begin + j] = narrow<T>(u * c - v * s);
        b.values[begin + j] = narrow<T>(v * c + u * s);
      }
    }
  }
  *reinterpret_cast<Pack<T, kCount>*>(y) = a;
  *reinterpret_cast<Pack<T, kCount>*>(y + half) = b;
}

/// True if every vector of 8 elements that a thread reads or writes is aligned.
bool takes_eight(const MoveHeads& p) {
  bool fits = p.dim % 16 == 0;
  for (int i = 0; i < p.count; ++i) {
    const HeadMove& move = p.moves[i];
    const auto address = reinterpret_cast<uintptr_t>(move.x) | reinterpret_cast<uintptr_t>(move.y);
    const int64_t strides =
        move.token_stride | move.head_stride | move.y_token_stride | move.y_head_stride;
    fits = fits && address % 16 == 0 && strides % 8 == 0;
  }
  return fits;
}

template <class T, int kCount>
void launch(const MoveHeads& p, cudaStream_t stream) {
  int64_t heads = 0;
  for (int i = 0; i < p.count; ++i) heads = heads > p.moves[i].heads ? heads : p.moves[i].heads;
  const int64_t threads = p.tokens * heads * (p.dim / 2 / kCount);
  if (threads == 0) return;
  if (threads > int64_t{UINT32_MAX} - kThreads) throw Error("move_heads: too many elements");
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                  static_cast<unsigned>(p.count));
  move_heads_kernel<T, kCount><<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace

void move_heads(const MoveHeads& params, void* stream) {
  with_element(params.dtype, [&](auto element) {
    using T = decltype(element);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (sizeof(T) == 2 && takes_eight(params)) {
      launch<T, 16 / sizeof(T)>(params, queue);
    } else {
      launch<T, 4>(params, queue);
    }
  });
  check_layer_launch("move_heads", params.tokens * params.dim);
}

}  // namespace diffattn::cuda
