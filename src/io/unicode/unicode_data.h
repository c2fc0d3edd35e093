// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

// The tables that tools/make_unicode_tables.py writes.

namespace diffattn::io::unicode {

/// A range of code points with one value. Tables hold sorted ranges that do not overlap.
struct Range {
  uint32_t first;
  uint32_t last;
  uint8_t value;
};

/// One step of a canonical decomposition; second is 0 for a singleton.
struct Decomposition {
  uint32_t composed;
  uint32_t first;
  uint32_t second;
  uint8_t composes;
};

extern const std::span<const Range> kClassRanges;
extern const std::span<const Range> kCombiningRanges;
extern const std::span<const Decomposition> kDecompositions;  // sorted by composed; no Hangul

}  // namespace diffattn::io::unicode
