// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/block.h"
#include "kernels/visible.h"

namespace diffattn::cpu {

/// One kv head of one sequence with all query rows that read it: heads of a group one after the
/// other, row r is query r % M of head r / M.
struct Head {
  int64_t b = 0, g = 0;
  Sequence seq;
  int64_t first_head = 0;  // of the group
  int64_t rows = 0;        // group size * M

  int64_t head(int64_t r) const { return first_head + r / seq.seq_q; }
  int64_t query(int64_t r) const { return r % seq.seq_q; }
};

/// Every kv head that has query rows, or, with `empty`, also those without.
std::vector<Head> heads_of(const Problem& problem, bool empty);

/// Which copies of a kv head are wanted, and what they take.
struct PackPlan {
  const Problem& problem;
  const View<const void>& v;
  const TileCode& code;
  bool rows_of_v = true;  // right side of p v
  bool backward = false;  // right sides of dO v^T and ds k

  int64_t bytes(const Head& head) const;
  /// Lays the copies of `head` out in `memory`.
  PackedKeys place(const Head& head, char* memory) const;
  /// No copies: only where the rows are.
  PackedKeys rows_only(const Head& head) const;
  /// Fills one panel of what `place` laid out.
  void pack(const Head& head, const PackedKeys& keys, int64_t panel) const;

  bool shared_keys() const;
  int64_t panels(const Head& head) const;
};

/// Row r of the head, as the maps want it.
Row row_of(const Problem& problem, const Head& head, int64_t r);

/// What the maps of all blocks of this head have in common. `rows` and `count` are left open.
MapsBlock maps_of(const Problem& problem, const PackedKeys& keys, int64_t map_panels);

/// out_scale * weight, [Dv].
std::vector<float> gain_of(const Epilogue& epilogue, int64_t value_dim);

/// Columns a head may hold, rounded up to whole key blocks, in panels of W.
int64_t panels_in_key_blocks(int64_t keys, const TileCode& code);

int64_t element_size(Dtype dtype);

/// Row (b, l, h) of an untyped view.
inline void* at(const View<void>& view, Dtype dtype, int64_t b, int64_t l, int64_t h) {
  return static_cast<char*>(view.data) +
         (b * view.batch_stride + l * view.seq_stride + h * view.head_stride) * element_size(dtype);
}
inline const void* at(const View<const void>& view, Dtype dtype, int64_t b, int64_t l, int64_t h) {
  return static_cast<const char*>(view.data) +
         (b * view.batch_stride + l * view.seq_stride + h * view.head_stride) * element_size(dtype);
}

}  // namespace diffattn::cpu
