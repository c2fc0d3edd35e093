// SPDX-License-Identifier: Apache-2.0
//
// Runs the CPU kernels on torch's threads, so that torch::set_num_threads() applies to them too.

#include <ATen/Parallel.h>

#include "diffattn/kernels/cpu.h"

#ifndef _OPENMP
#error "compile this file with OpenMP: without it at::parallel_for runs on one thread"
#endif

namespace diffattn::ops {
namespace {

int64_t count() { return at::get_num_threads(); }

void run(int64_t workers, void (*body)(void*), void* context) {
  at::parallel_for(0, workers, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) body(context);
  });
}

[[maybe_unused]] const bool kInstalled = [] {
  cpu::use_threads({count, run});
  return true;
}();

}  // namespace
}  // namespace diffattn::ops
