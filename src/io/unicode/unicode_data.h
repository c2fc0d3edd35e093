// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

// PRIVATE header of the io layer: the tables that tools/make_unicode_tables.py writes.

namespace diffattn::io::unicode {

/// A run of code points with one value; runs are sorted and do not overlap.
struct Range {
  std::uint32_t first;
  std::uint32_t last;
  std::uint8_t value;
};

/// One step of a canonical decomposition; second is 0 for a singleton.
struct Decomposition {
  std::uint32_t composed;
  std::uint32_t first;
  std::uint32_t second;
  std::uint8_t composes;
};

extern const std::span<const Range> kClassRanges;
extern const std::span<const Range> kCombiningRanges;
extern const std::span<const Decomposition> kDecompositions;  // sorted by composed; no Hangul

}  // namespace diffattn::io::unicode
