// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <malloc.h>

namespace diffattn::app {

/// Every training step takes the same memory again: what one gives back stays with the program,
/// instead of coming back from the system page by page.
inline void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that the C library allows
  mallopt(M_TRIM_THRESHOLD, -1);        // never
}

/// The opposite: large blocks go back at once.
inline void return_freed_memory() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

/// Once: what was freed until now goes back, so that what comes next shows as resident memory.
inline void trim_freed_memory() { malloc_trim(0); }

}  // namespace diffattn::app
