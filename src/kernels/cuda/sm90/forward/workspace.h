// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/sm90/mask_biases.h"
#include "kernels/cuda/sm90/mask_words.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace diffattn::cuda::sm90 {

/// What the kernels leave in global memory beside the outputs.
struct ForwardState {
  int* next_item;  // 0 before the launch
  uint8_t* redo;   // [heads, redo_tiles], 0 before the launch: 64-row tiles to compute again
  int redo_tiles;
};

/// The workspace of one forward, cut into its arrays. With `memory` null only `bytes` is
/// meaningful.
struct ForwardWorkspace {
  size_t bytes;
  size_t cleared;  // bytes that are 0 before the launch
  int64_t marks;   // entries of redo
  ForwardState state;
  RowWords words;     // under a boolean mask
  MaskBiases biases;  // under an additive one

  ForwardWorkspace(const ForwardParams& params, void* memory);
};

/// Floats take fewer instructions, but twice the memory and its traffic, which is much where every
/// head has a mask of its own.
bool has_narrow_biases(const ForwardParams& params);

/// Sets it to 0, by a kernel that the next one may overlap.
void clear(const ForwardWorkspace& work, const Problem& problem, cudaStream_t stream);

/// How many tiles of `rows` rows a head has: packed, places for them (`first_place`).
int64_t tile_places(const Problem& problem, int64_t rows);

/// How many of `heads` heads to work on together, so that their k and v stay in the second-level
/// cache.
int heads_at_a_time(const ForwardParams& params, int64_t heads);

BoxedTensor boxed_q(const Problem& problem, const View<const void>& q);
BoxedTensor boxed_k(const Problem& problem, const View<const void>& k);
BoxedTensor boxed_v(const ForwardParams& params);
BoxedTensor boxed_out(const ForwardParams& params, const View<void>& out);

/// Are k1 and k2 the same memory?
bool shares_k(const Problem& problem);

/// Multiprocessors of the current device.
int processor_count(const Problem& problem);

}  // namespace diffattn::cuda::sm90
