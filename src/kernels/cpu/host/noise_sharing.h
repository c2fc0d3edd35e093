// SPDX-License-Identifier: Apache-2.0
//
// Whether the heads of a noise head compute map 2 once. A block that shares it holds the rows of
// each head apart and pads them to whole strips, so with few rows sharing may take more work than
// a map 2 for each head: r = 4 heads of 3 rows fill 4 strips of 12 rows, or one if they are
// independent. Results of the forward have the same bits either way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/host/head.h"

namespace diffattn::cpu {

/// Multiply-adds per (query, key) pair: of a head that computes both maps, and of one that finds
/// map 2 computed.
struct PairWork {
  int64_t both_maps, one_map;
};

/// Sets Head::share to `group` for the heads where that is no more work, and to 1 for the others.
/// Depends on the sizes of each head alone.
void share_noise_heads(std::span<Head> heads, int64_t group, const PairWork& work, int strip_rows);

/// Does the same for independent blocks of up to `block_rows` rows, and returns the rows of a
/// block. Few blocks would leave threads idle. So it makes blocks smaller until every thread has
/// one, and lets no head share if the threads are likely to finish earlier then.
int share_noise_heads(std::span<Head> heads, int64_t group, const PairWork& work, int strip_rows,
                      int block_rows);

/// Sums dq2 over the heads of a noise head where each computes its own map 2.
class NoiseQuerySum {
 public:
  /// `heads`: every kv head of every sequence, in order. Keeps references to both.
  NoiseQuerySum(const BackwardParams& params, std::span<const Head> heads);

  /// True if the rows of this head write parts of dq2.
  bool has(const Head& head) const { return params_.dq2 && head.share < params_.noise_group(); }
  /// Returns where row r of the head writes its part, [D] in float.
  float* row(const Head& head, int64_t r) {
    return &parts_[(first_row_[head.b * params_.kv_heads + head.g] + r) * params_.head_dim];
  }
  /// Adds the parts of each noise row, in the order of heads, and stores them as dq2.
  void store() const;

 private:
  const BackwardParams& params_;
  const std::span<const Head> heads_;
  std::vector<int64_t> first_row_;  // of each kv head
  std::vector<float> parts_;        // [rows][D]
};

}  // namespace diffattn::cpu
