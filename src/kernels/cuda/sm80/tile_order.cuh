// SPDX-License-Identifier: Apache-2.0
//
// The order in which blocks compute the tiles of all heads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda::sm80 {

/// Returns the tile of `block`. Blocks visit `group` heads at a time; within a group they take tile
/// 0 of each head, then tile 1 of each head, and so on. If tiles differ in length (causal mask),
/// the long tiles of all heads of a group start first and the short ones fill the tail, while the
/// group's tensors stay in the L2 cache.
__device__ inline WorkTile grouped_work_tile(int block, int batch, int heads, int tiles,
                                             int group) {
  const int first = block / (group * tiles) * group, within = block % (group * tiles);
  const int size = min(group, batch * heads - first);
  return WorkTile(int64_t{first + within % size} * tiles + within / size, heads, tiles);
}

/// Returns how many heads of `rows` rows of `row_bytes` bytes fit into `cache_bytes`; at least 1.
inline int heads_in_cache(int64_t rows, int64_t row_bytes, int64_t cache_bytes) {
  const int64_t head_bytes = std::max<int64_t>(rows * row_bytes, 1);
  return static_cast<int>(std::clamp<int64_t>(cache_bytes / head_bytes, 1, 1 << 12));
}

/// Returns the group size that splits `heads` into equal groups of at most `most`. A small last
/// group would start its long tiles when most SMs have run out of work.
inline int even_group(int64_t heads, int64_t most) {
  const int64_t groups = (heads + most - 1) / most;
  return static_cast<int>((heads + groups - 1) / groups);
}

}  // namespace diffattn::cuda::sm80
