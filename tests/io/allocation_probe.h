// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace diffattn::io::testing {

/// Watches operator new, which this test program replaces.
struct AllocationProbe {
  static void reset();
  static std::size_t largest();    // biggest single request since reset()
  static std::size_t peak_live();  // most bytes alive at once since reset(), above the start
};

/// The promise of the loaders: no single allocation beyond this for a file of that size.
inline std::size_t allocation_bound(std::size_t file_size) {
  return 2 * file_size + (std::size_t{64} << 20);
}

}  // namespace diffattn::io::testing
