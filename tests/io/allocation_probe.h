// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffattn::io::testing {

/// Counts the allocations of this test program, which replaces operator new.
struct AllocationProbe {
  static void reset();
  static size_t largest();    // largest single allocation since reset()
  static size_t peak_live();  // peak of allocated bytes since reset(), minus those at reset()
};

/// The largest allocation that a loader may make for a file of that size.
inline size_t allocation_bound(size_t file_size) { return 2 * file_size + (size_t{64} << 20); }

}  // namespace diffattn::io::testing
