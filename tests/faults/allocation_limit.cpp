// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: allocations of at least DIFFATTN_TEST_ALLOCATION bytes fail, as on a
// machine without memory. The limit holds from the start of the program on: libraries allocate
// large tables when they are loaded.

#include <dlfcn.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

using Main = int(int, char**, char**);
using StartMain = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);

namespace {

size_t limit = SIZE_MAX;

}  // namespace

extern "C" {

void* __libc_malloc(size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  if (size < limit) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  if (size >= limit) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}

/// Is called when all libraries are loaded.
int __libc_start_main(Main* main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  auto* const next = reinterpret_cast<StartMain*>(dlsym(RTLD_NEXT, "__libc_start_main"));
  if (const char* const text = getenv("DIFFATTN_TEST_ALLOCATION")) {
    limit = strtoull(text, nullptr, 10);
  }
  return next(main, argc, argv, init, fini, rtld_fini, stack_end);
}

}  // extern "C"
