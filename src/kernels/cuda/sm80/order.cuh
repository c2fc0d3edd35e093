// SPDX-License-Identifier: Apache-2.0
//
// In which order the tiles of all heads are computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda::sm80 {

/// Blocks in the order of their tiles, for `group` heads at a time: where tiles differ in length
/// (causal) the long ones of all heads come first and the short ones fill the end, while what the
/// group reads stays in the second-level cache.
__device__ inline BlockPlace grouped_place(int block, int batch, int heads, int tiles, int group) {
  const int first = block / (group * tiles) * group, within = block % (group * tiles);
  const int size = min(group, batch * heads - first);
  return BlockPlace(int64_t{first + within % size} * tiles + within / size, heads, tiles);
}

/// Heads whose `rows` rows of `row_bytes` bytes fit into `cache_bytes` together.
inline int heads_in_cache(int64_t rows, int64_t row_bytes, int64_t cache_bytes) {
  const int64_t head_bytes = std::max<int64_t>(rows * row_bytes, 1);
  return static_cast<int>(std::clamp<int64_t>(cache_bytes / head_bytes, 1, 1 << 12));
}

/// The size of groups of at most `most` that `heads` make, as even as they can be: the long tiles
/// of a last group of few heads would begin when most multiprocessors are about to be done.
inline int even_group(int64_t heads, int64_t most) {
  const int64_t groups = (heads + most - 1) / most;
  return static_cast<int>((heads + groups - 1) / groups);
}

}  // namespace diffattn::cuda::sm80
