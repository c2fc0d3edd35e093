// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <malloc.h>

namespace diffattn::app {

/// Makes malloc keep freed memory. Every training step allocates the same blocks, and getting them
/// back from Linux costs a page fault per page.
inline void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's upper limit
  mallopt(M_TRIM_THRESHOLD, -1);        // never trim
}

/// Makes malloc return every freed block of 1 MiB or more to Linux at once.
inline void return_freed_memory() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

/// Returns the memory freed so far to Linux once, so that later allocations show up as resident
/// memory.
inline void trim_freed_memory() { malloc_trim(0); }

}  // namespace diffattn::app
