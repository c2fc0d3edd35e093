// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/block.h"
#include "kernels/visible.h"

namespace diffattn::cpu {

/// One kv head of one sequence, with all query rows that read it. Row r is query r % M of head
/// first_head + r / M.
struct Head {
  int64_t b = 0, g = 0;
  Sequence seq;
  int64_t first_head = 0;  // of the group
  int64_t rows = 0;        // group size * M

  int64_t head(int64_t r) const { return first_head + r / seq.seq_q; }
  int64_t query(int64_t r) const { return r % seq.seq_q; }
};

/// Returns every kv head that has query rows; with `empty`, also those without.
std::vector<Head> heads_of(const Problem& problem, bool empty);

/// The packed copies of a kv head that an operation needs.
struct PackPlan {
  const Problem& problem;
  const View<const void>& v;
  const TileCode& code;
  bool rows_of_v = true;  // PackedKeys::v, for p v
  bool backward = false;  // PackedKeys::vt and k, for dO v^T and ds k

  /// Returns the bytes that the copies of `head` take.
  int64_t bytes(const Head& head) const;
  /// Lays out the copies of `head` in `memory` without filling them.
  PackedKeys place(const Head& head, char* memory) const;
  /// Returns the unpacked rows of `head` without any copies.
  PackedKeys rows_only(const Head& head) const;
  /// Fills one panel of the copies that place() laid out.
  void pack(const Head& head, const PackedKeys& keys, int64_t panel) const;

  /// True if k1 and k2 are the same memory, so that one copy serves both maps.
  bool shared_keys() const;
  int64_t panels(const Head& head) const;
};

/// Returns row r of the head as the maps read it.
Row row_of(const Problem& problem, const Head& head, int64_t r);

/// Returns the inputs that all blocks of this head share. The caller sets `rows` and `count`.
MapsBlock maps_of(const Problem& problem, const PackedKeys& keys, int64_t map_panels);

/// Returns out_scale * weight, [Dv].
std::vector<float> gain_of(const Epilogue& epilogue, int64_t value_dim);

/// Returns the number of panels of `keys` keys, rounded up to whole key blocks.
int64_t panels_in_key_blocks(int64_t keys, const TileCode& code);

int64_t element_size(Dtype dtype);

/// Returns row (b, l, h) of an untyped view.
inline void* at(const View<void>& view, Dtype dtype, int64_t b, int64_t l, int64_t h) {
  return static_cast<char*>(view.data) +
         (b * view.batch_stride + l * view.seq_stride + h * view.head_stride) * element_size(dtype);
}
inline const void* at(const View<const void>& view, Dtype dtype, int64_t b, int64_t l, int64_t h) {
  return static_cast<const char*>(view.data) +
         (b * view.batch_stride + l * view.seq_stride + h * view.head_stride) * element_size(dtype);
}

}  // namespace diffattn::cpu
