// SPDX-License-Identifier: Apache-2.0
//
// The mask of one query row over one panel of W keys, for step (1) of docs/algorithm.md:
//
//   bits  [W]  1 if the row sees the column: inside [row.begin, row.end) and not hidden by the mask
//   bias  [W]  the additive mask times log2(e), in fp32, which is added to the score
//
// The range covers causality, window, key starts and key lengths. The given mask is read only
// inside the range.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// `column` is the first column of the panel.
template <class Isa>
struct TileMask {
  using Vec = typename Isa::Vec;
  static constexpr int kCols = Isa::kCols;
  const MapsBlock& block;

  /// Returns the visible columns as bits.
  uint32_t bits(const Row& row, int64_t column) const {
    const int64_t first = clamp(row.begin - column), last = clamp(row.end - column);
    if (first >= last) return 0;
    const uint32_t range = low_bits(last) & ~low_bits(first);
    if (block.mask_kind == MaskKind::kNone) return range;
    return range & (block.mask_kind == MaskKind::kBoolean ? boolean(row, column, first, last)
                                                          : finite(row, column, first, last));
  }

  /// Writes the additive mask in log2 units to out [W]; 0 outside the row's range. Clamps it to
  /// finite numbers: a row whose entries are all finfo.min then has equal weights, as in the
  /// reference, instead of -inf scores.
  void bias(const Row& row, int64_t column, float* out) const {
    const int64_t first = clamp(row.begin - column), last = clamp(row.end - column);
    for (int h = 0; h < kCols; h += Isa::kLanes) Isa::store(out + h, Isa::zero());
    if (block.mask_stride == 1 && block.mask_dtype != Dtype::kFloat64) {
      for (int64_t j = first; j < last; j += Isa::kLanes) {
        const Vec x = Isa::load_elements(row.mask, block.mask_dtype, column + j, last - j);
        const Vec scaled = Isa::max(Isa::set1(-kHuge), Isa::mul(x, Isa::set1(kLog2e)));
        store_first(out + j, scaled, last - j);
      }
      return;
    }
    for (int64_t j = first; j < last; ++j) {
      const float scaled = entry(row, column + j) * kLog2e;
      out[j] = scaled < -kHuge ? -kHuge : scaled;
    }
  }

 private:
  static constexpr float kHuge = 0x1.fffffep127f;  // largest finite fp32

  static int64_t clamp(int64_t x) { return x < 0 ? 0 : x > kCols ? kCols : x; }
  static uint32_t low_bits(int64_t count) {
    return static_cast<uint32_t>((uint64_t{1} << count) - 1);
  }
  static void store_first(float* out, Vec x, int64_t count) {
    Isa::store_elements(out, Dtype::kFloat32, 0, count < Isa::kLanes ? count : Isa::kLanes, x);
  }

  uint32_t boolean(const Row& row, int64_t column, int64_t first, int64_t last) const {
    const uint8_t* entries = static_cast<const uint8_t*>(row.mask);
    if (block.mask_stride == 1) {
      return Isa::nonzero_bytes(entries + column + first, last - first) << first;
    }
    uint32_t seen = 0;
    for (int64_t j = first; j < last; ++j) {
      seen |= static_cast<uint32_t>(entries[(column + j) * block.mask_stride] != 0) << j;
    }
    return seen;
  }

  /// Returns a bit for each entry of an additive mask that is not -inf.
  uint32_t finite(const Row& row, int64_t column, int64_t first, int64_t last) const {
    const float unseen = -__builtin_inff();
    uint32_t seen = 0;
    if (block.mask_stride == 1 && block.mask_dtype != Dtype::kFloat64) {
      for (int64_t j = first; j < last; j += Isa::kLanes) {
        const Vec x = Isa::load_elements(row.mask, block.mask_dtype, column + j, last - j);
        seen |= Isa::not_equal_bits(x, unseen) << j;
      }
      return seen;
    }
    for (int64_t j = first; j < last; ++j) {
      seen |= static_cast<uint32_t>(entry(row, column + j) != unseen) << j;
    }
    return seen;
  }

  float entry(const Row& row, int64_t n) const {
    const int64_t at = n * block.mask_stride;
    if (block.mask_dtype == Dtype::kFloat64) {
      return static_cast<float>(static_cast<const double*>(row.mask)[at]);
    }
    if (block.mask_dtype == Dtype::kFloat32) return static_cast<const float*>(row.mask)[at];
    return Isa::lane0(Isa::load_elements(row.mask, block.mask_dtype, at, 1));
  }
};

}  // namespace diffattn::cpu
