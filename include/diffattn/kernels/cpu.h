// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"

/// The fused CPU kernels. Pointers are host memory. Every function throws `Error` for wrong
/// parameters and `std::bad_alloc` if it cannot allocate scratch memory, both on the calling
/// thread. Results are the same bits for any number of threads, any position in the batch and in
/// every run.
namespace diffattn::cpu {

/// A thread pool for the kernels.
struct Threads {
  /// Returns how many threads may run at once.
  int64_t (*count)();
  /// Calls body(context) on up to `workers` threads at the same time, at least once, and returns
  /// when all calls have returned. `body` does not throw.
  void (*run)(int64_t workers, void (*body)(void* context), void* context);
};

/// Replaces the thread pool, for a host program that has its own. The default is a pool of this
/// library, with one thread per core that the process may use.
void use_threads(const Threads& threads);

/// Sets the size of the library's own pool; 0 = one thread per core.
void set_thread_count(int64_t count);

/// AVX-512 with fp32 tiles of 12 x 32. Packing widens bf16 and fp16 inputs to fp32.
namespace avx512 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx512

/// bf16 inputs only, with vdpbf16ps. Probabilities are rounded to bf16 for their product with v.
namespace avx512_bf16 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx512_bf16

/// bf16 inputs only, with AMX tiles of 32 x 32. Probabilities are rounded as in avx512_bf16.
namespace amx {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace amx

/// Like avx512 but with tiles of 6 x 16, for processors without AVX-512.
namespace avx2 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace avx2

/// float64 inputs, on any processor. The reference computes statistics and maps.
namespace float64 {
bool available();
bool takes(const Problem& problem);
void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);
}  // namespace float64

}  // namespace diffattn::cpu
