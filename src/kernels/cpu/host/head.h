// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/block.h"
#include "kernels/visible.h"

namespace diffattn::cpu {

/// One kv head of one sequence, with all query rows that read it. Row r is query r % M of head
/// first_head + r / M. `share` heads run together and compute map 2 once (noise_sharing.h): a noise
/// row stands for the rows of these heads that have the same row of q2.
struct Head {
  int64_t b = 0, g = 0;
  Sequence seq;
  int64_t first_head = 0;  // of the group
  int64_t rows = 0;        // group size * M
  int64_t share = 1;       // 1, or all heads of a noise head

  int64_t noise_rows() const { return rows / share; }
  /// Returns the row of head i < share among the heads that read this noise row.
  int64_t row(int64_t noise_row, int64_t i) const {
    return (noise_row / seq.seq_q * share + i) * seq.seq_q + noise_row % seq.seq_q;
  }
  int64_t head(int64_t r) const { return first_head + r / seq.seq_q; }
  int64_t query(int64_t r) const { return r % seq.seq_q; }
};

/// Returns every kv head that has query rows; with `empty`, also those without. Each head computes
/// its own map 2.
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

/// Memory for the rows of a block and for the outputs of each row, at the start of a task's memory.
template <class Output>
struct BlockRows {
  Row* rows;
  Output* outputs;

  BlockRows(int64_t count, char* memory)
      : rows(reinterpret_cast<Row*>(memory)), outputs(reinterpret_cast<Output*>(rows + count)) {}

  /// Returns the bytes of `count` rows, in whole cache lines.
  static int64_t bytes(int64_t count) {
    constexpr auto kRow = static_cast<int64_t>(sizeof(Row) + sizeof(Output));
    return (count * kRow + 63) / 64 * 64;
  }
};

/// Returns row r of the head as the maps read it.
Row row_of(const Problem& problem, const Head& head, int64_t r);

/// Returns the inputs that all blocks of this head share, for rows of one head. The caller sets
/// `rows` and `count`, and `heads` if several share map 2.
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
