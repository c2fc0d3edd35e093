// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"

/// The fused CPU kernels. Pointers are host memory. Every function throws `Error` for wrong
/// parameters and `std::bad_alloc` when scratch memory cannot be had, before any thread starts.
/// Results do not depend on the number of threads, on a row's place in the batch, or on the run.
namespace diffattn::cpu {

/// Where the kernels get their threads from.
struct Threads {
  /// How many may run at once.
  int64_t (*count)();
  /// Calls body(context) on up to `workers` threads at the same time, at least once, and returns
  /// when all calls have returned. `body` does not throw.
  void (*run)(int64_t workers, void (*body)(void* context), void* context);
};

/// Replaces the source of threads, for a host that has a pool of its own. The default is a pool of
/// this library, with one thread per core that this process may use.
void use_threads(const Threads& threads);

/// The size of the library's own pool; 0 = one thread per core.
void set_thread_count(int64_t count);

/// fp32 tiles of 12 x 32; bf16 and fp16 are widened while they are packed.
namespace avx512 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx512

/// bf16 alone, on vdpbf16ps: probabilities are rounded to bf16 for their product with v.
namespace avx512_bf16 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx512_bf16

/// bf16 alone, on tile registers.
namespace amx {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace amx

/// As avx512 with tiles of 6 x 16, for processors without AVX-512.
namespace avx2 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx2

}  // namespace diffattn::cpu
