// SPDX-License-Identifier: Apache-2.0
//
// Times decoding on a paged KV cache, whose pages lie in random order, beside the same cache in one
// piece.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "benchmarks/cuda/timing.cuh"
#include "diffattn/kernels/cuda.h"

namespace diffattn::cuda {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kWidth = 64, kValueWidth = 128, kPage = 64;

/// Integers in device memory.
struct Integers {
  int32_t* data = nullptr;

  explicit Integers(const std::vector<int32_t>& from) {
    check(cudaMalloc(&data, from.size() * sizeof(int32_t)));
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  }
  ~Integers() { cudaFree(data); }
  Integers(const Integers&) = delete;
  Integers& operator=(const Integers&) = delete;
};

/// One new token of each of `batch` sequences on `keys` keys each, in bfloat16.
void run(int64_t batch, int64_t keys) {
  const int64_t rows = batch * keys, pages = rows / kPage;
  const DeviceArray<bfloat16> q1(batch * kHeads * kWidth), q2(batch * kHeads * kWidth);
  const DeviceArray<bfloat16> k1(rows * kKvHeads * kWidth), k2(rows * kKvHeads * kWidth);
  const DeviceArray<bfloat16> v(rows * kKvHeads * kValueWidth);
  const DeviceArray<bfloat16> out(batch * kHeads * kValueWidth);
  const DeviceArray<float> lambda(kHeads);
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const Integers table(order);
  const Integers lengths(
      std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(keys)));
  ForwardParams p;
  p.dtype = Dtype::kBFloat16;
  p.batch = batch, p.heads = kHeads, p.kv_heads = kKvHeads;
  p.seq_q = 1, p.seq_k = keys, p.head_dim = kWidth, p.value_dim = kValueWidth;
  p.q1 = {q1.data, kHeads * kWidth, kHeads * kWidth, kWidth};
  p.q2 = {q2.data, kHeads * kWidth, kHeads * kWidth, kWidth};
  p.lambda = {lambda.data, 0, 0, 1};
  p.scale = p.scale2 = 1.0 / std::sqrt(static_cast<double>(kWidth));
  p.causal = true;
  p.key_lengths = lengths.data;
  p.align_to_key_lengths = true;
  p.epilogue.norm = true;
  p.epilogue.norm_eps = 1e-5;
  p.out = {out.data, kHeads * kValueWidth, kHeads * kValueWidth, kValueWidth};
  const auto timed = [&](bool paged) {
    const int64_t piece = paged ? kPage : keys;  // rows that lie together
    const auto view = [&](const DeviceArray<bfloat16>& x, int64_t width) -> View<const void> {
      return {x.data, piece * kKvHeads * width, kKvHeads * width, width};
    };
    p.k1 = view(k1, kWidth);
    p.k2 = view(k2, kWidth);
    p.v = view(v, kValueWidth);
    p.pages = paged ? Pages{table.data, keys / kPage, kPage} : Pages{};
    const DeviceArray<float> workspace(static_cast<int64_t>(forward_workspace_bytes(p)) / 4 + 1);
    return times_of([&] { forward(p, workspace.data, nullptr); });
  };
  const Times whole = timed(false), paged = timed(true);
  const double bytes = static_cast<double>(rows * kKvHeads) * (2 * kWidth + kValueWidth) * 2;
  std::printf(
      "%3lld x %-6lld %5.0f MB  contiguous %.4f ms [%.4f, %.4f], %2.0f %% of the memory's rate; "
      "paged %.4f ms [%.4f, %.4f], %.3f times as long\n",
      (long long)batch, (long long)keys, bytes * 1e-6, whole.median, whole.least, whole.most,
      100.0 * bytes / memory_bytes_per_ms() / whole.median, paged.median, paged.least, paged.most,
      paged.median / whole.median);
  std::fflush(stdout);
}

}  // namespace
}  // namespace diffattn::cuda

int main() {
  try {
    if (!diffattn::cuda::print_gpu()) return 0;
    diffattn::cuda::run(1, 32768);
    diffattn::cuda::run(4, 8192);
    for (const int64_t batch : {8, 16, 32}) diffattn::cuda::run(batch, 8192);
    diffattn::cuda::run(8, 32768);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
