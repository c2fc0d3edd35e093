// SPDX-License-Identifier: Apache-2.0
//
// Times the selective scan beside two bounds: the special function units, which compute 16
// exponentials per clock and multiprocessor and of which each channel, state and token needs one,
// and the bytes that the kernel must move.

#include <cuda_runtime.h>

#include <cstdio>

#include "benchmarks/cuda/timing.cuh"
#include "kernels/selective_scan.h"

namespace diffattn::cuda {
namespace {

constexpr int64_t kStates = 16;
constexpr double kExponentialsPerClock = 16.0;

void print_line(const char* pass, int64_t batch, int64_t length, int64_t channels,
                const Times& times, double bytes) {
  const double exponentials = static_cast<double>(batch * length * channels) * kStates;
  const double exponentials_ms = exponentials / kExponentialsPerClock /
                                 attribute(cudaDevAttrMultiProcessorCount) /
                                 attribute(cudaDevAttrClockRate);  // kHz are clocks per ms
  const double bytes_ms = bytes / memory_bytes_per_ms();
  std::printf(
      "%-18s B%-2lld L%-6lld E%-5lld %8.4f ms [%.4f, %.4f]; exponentials %.4f ms (%2.0f %%), "
      "bytes %.4f ms (%2.0f %%)\n",
      pass, (long long)batch, (long long)length, (long long)channels, times.median, times.least,
      times.most, exponentials_ms, 100.0 * exponentials_ms / times.median, bytes_ms,
      100.0 * bytes_ms / times.median);
  std::fflush(stdout);
}

/// Times the forward pass of inference and of training, and the backward pass, in bfloat16.
void run(int64_t batch, int64_t length, int64_t channels) {
  const int64_t rows = batch * length, chunks = (length + kScanChunk - 1) / kScanChunk;
  const int64_t blocks = scan_blocks(channels, kStates);
  const DeviceArray<bfloat16> u(rows * channels), delta(rows * channels), dy(rows * channels);
  const DeviceArray<bfloat16> b(rows * kStates), c(rows * kStates);
  const DeviceArray<float> a(channels * kStates), d(channels);
  const DeviceArray<bfloat16> y(rows * channels), du(rows * channels), ddelta(rows * channels);
  const DeviceArray<float> last(batch * channels * kStates);
  const DeviceArray<float> kept(batch * chunks * channels * kStates);
  const DeviceArray<float> db(blocks * rows * kStates), dc(blocks * rows * kStates);
  const DeviceArray<float> da(batch * channels * kStates), dd(batch * channels);
  // A is negative, and about as large as a trained model's.
  check(cudaMemset(a.data, 0xbf, channels * kStates * sizeof(float)));  // -1.498
  Scan scan;
  scan.u = u.data, scan.delta = delta.data, scan.b = b.data, scan.c = c.data;
  scan.a = a.data, scan.d = d.data;
  scan.batch = batch, scan.length = length, scan.channels = channels, scan.states = kStates;
  scan.u_stride = scan.delta_stride = channels;
  scan.b_stride = scan.c_stride = kStates;
  scan.dtype = Dtype::kBFloat16;
  scan.y = y.data, scan.last = last.data;
  const auto tensor = static_cast<double>(rows * channels * 2);  // bytes of u, delta, y, dy, ...
  const auto states = static_cast<double>(rows * kStates * 2);   // of b or c
  const auto saved = static_cast<double>(batch * chunks * channels * kStates * 4);
  const auto parts = static_cast<double>(blocks * rows * kStates * 4);  // of db or dc
  const auto forward = [&] { selective_scan(scan, nullptr); };
  print_line("forward", batch, length, channels, times_of(forward), 3 * tensor + 2 * states);
  scan.kept = kept.data;
  print_line("forward, training", batch, length, channels, times_of(forward),
             3 * tensor + 2 * states + saved);
  scan.dy = dy.data, scan.du = du.data, scan.ddelta = ddelta.data;
  scan.db = db.data, scan.dc = dc.data, scan.da = da.data, scan.dd = dd.data;
  print_line("backward", batch, length, channels,
             times_of([&] { selective_scan_backward(scan, nullptr); }),
             5 * tensor + 2 * states + saved + 2 * parts);
}

}  // namespace
}  // namespace diffattn::cuda

int main() {
  try {
    if (!diffattn::cuda::print_gpu()) return 0;
    diffattn::cuda::run(1, 2048, 5120);  // Phi-4-mini-flash
    diffattn::cuda::run(1, 16384, 5120);
    diffattn::cuda::run(8, 2048, 5120);
    diffattn::cuda::run(8, 2048, 1536);  // benchmarks/random_model.py sambay_100m
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
