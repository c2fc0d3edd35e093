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

/// The global memory that the forward kernels share. `clear` sets it to 0 before the main kernel.
struct ForwardState {
  int* next_item;         // counter of the work items taken
  uint8_t* repair_marks;  // [heads, marks_per_head], 1 for each 64-row tile to be repaired
  int marks_per_head;
};

/// The workspace of one forward, divided into its arrays. If `memory` is null, only `bytes` is
/// meaningful.
struct ForwardWorkspace {
  size_t bytes;
  size_t cleared;  // bytes of `state`, which `clear` sets to 0
  int64_t marks;   // entries of repair_marks
  ForwardState state;
  RowWords words;     // boolean mask
  MaskBiases biases;  // additive mask

  ForwardWorkspace(const ForwardParams& params, void* memory);
};

/// True if the forward reads 16-bit biases: the mask has the type of q, and every head has a mask
/// of its own. Float biases take fewer instructions but twice the memory traffic, which matters
/// when every head has its own mask.
bool has_narrow_biases(const ForwardParams& params);

/// Launches clear_kernel, which sets `state` to 0. The next kernel may overlap with it.
void clear(const ForwardWorkspace& work, const Problem& problem, cudaStream_t stream);

/// Returns the number of tiles of `rows` rows of a head; for packed sequences, the number of tile
/// indices (`first_tile_index`), some of which are unused.
int64_t tile_index_count(const Problem& problem, int64_t rows);

/// Returns how many of `heads` heads run together, so that their k and v stay in the L2 cache.
int heads_in_cache(const ForwardParams& params, int64_t heads);

/// Describe the tensors for TMA. Packed tensors have one batch entry.
BoxedTensor boxed_q(const Problem& problem, const View<const void>& q);
BoxedTensor boxed_k(const Problem& problem, const View<const void>& k);
BoxedTensor boxed_v(const ForwardParams& params);
BoxedTensor boxed_out(const ForwardParams& params, const View<void>& out);

/// True if k1 and k2 are the same memory with the same strides.
bool shares_k(const Problem& problem);

/// Returns the number of multiprocessors of the current device.
int processor_count(const Problem& problem);

}  // namespace diffattn::cuda::sm90
