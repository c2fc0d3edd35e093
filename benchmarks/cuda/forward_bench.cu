// SPDX-License-Identifier: Apache-2.0
//
// Times the sm90 forward kernels with various options, next to the sm80 kernel. The sm80 kernel
// also checks the result: we print the relative Frobenius distance of the two outputs. TFLOP/s
// count the useful work, 4 D + 4 Dv per visible (query, key) pair.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "benchmarks/cuda/random_data.cuh"
#include "diffattn/kernels/cuda.h"

namespace diffattn::cuda {
namespace {

constexpr int kWarmUps = 5;
constexpr int kRepeats = 31;

/// sums[0] = |a - b|^2, sums[1] = |b|^2
template <class T>
__global__ void distance_kernel(const T* a, const T* b, int64_t count, double* sums) {
  double difference = 0, size = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const double x = widen(a[i]), y = widen(b[i]);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  atomicAdd(sums, difference);
  atomicAdd(sums + 1, size);
}

/// A dense tensor [B, L, H, W] in device memory: random numbers, or NaN for an output.
template <class T>
struct Buffer {
  T* data = nullptr;
  int64_t count;
  View<void> view;

  Buffer(int64_t batch, int64_t seq, int64_t heads, int64_t width, bool output)
      : count(batch * seq * heads * width) {
    check(cudaMalloc(&data, count * sizeof(T)));
    view = {data, seq * heads * width, heads * width, width};
    check(cudaMemset(data, 0xff, count * sizeof(T)));
    if (!output) fill(data, count);
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  View<const void> input() const {
    return {data, view.batch_stride, view.seq_stride, view.head_stride};
  }
};

constexpr int64_t kNoWindow = -1;

struct Setting {
  const char* name;
  int64_t batch, heads, kv_heads, seq, head_dim, value_dim;
  bool causal;
  int64_t window = kNoWindow;
  int sequences = 0;  // packed sequences of uneven lengths with `seq` rows in total; 0: not packed
  bool shared_k = false;
  bool training = true;  // true: also write o, o2, lse1 and lse2
};

/// Returns the offsets of packed sequences whose lengths are as 1 : 2 : 3 : ...
std::vector<int32_t> offsets_of(const Setting& s) {
  std::vector<int32_t> offsets{0};
  const int64_t parts = static_cast<int64_t>(s.sequences) * (s.sequences + 1) / 2;
  for (int64_t i = 1, sum = 0; i <= s.sequences; ++i) {
    sum += i;
    offsets.push_back(static_cast<int32_t>(s.seq * sum / parts));
  }
  return offsets;
}

double visible_pairs(const Setting& s) {
  double pairs = 0;
  const auto add = [&](double n) {
    if (s.window != kNoWindow) {
      const double w = std::min<double>(static_cast<double>(s.window), n);
      pairs += n * w - w * (w - 1) / 2;
    } else {
      pairs += s.causal ? n * (n + 1) / 2 : n * n;
    }
  };
  if (s.sequences == 0) {
    add(static_cast<double>(s.seq));
  } else {
    const std::vector<int32_t> offsets = offsets_of(s);
    for (int i = 0; i < s.sequences; ++i) add(offsets[i + 1] - offsets[i]);
  }
  return pairs * static_cast<double>(s.batch * s.heads);
}

template <class Launch>
float median_ms(Launch launch, int warm_ups, int repeats) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < warm_ups + repeats; ++i) {
    check(cudaEventRecord(begin, nullptr));
    launch();
    check(cudaEventRecord(end, nullptr));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= warm_ups) times.push_back(ms);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
void run(Dtype dtype, const Setting& s) {
  const Buffer<T> q1(s.batch, s.seq, s.heads, s.head_dim, false);
  const Buffer<T> q2(s.batch, s.seq, s.heads, s.head_dim, false);
  const Buffer<T> k1(s.batch, s.seq, s.kv_heads, s.head_dim, false);
  const Buffer<T> k2(s.batch, s.seq, s.kv_heads, s.head_dim, false);
  const Buffer<T> v(s.batch, s.seq, s.kv_heads, s.value_dim, false);
  const Buffer<float> lambda(1, 1, s.heads, 1, false);
  const Buffer<T> out(s.batch, s.seq, s.heads, s.value_dim, true);
  const Buffer<T> sm80(s.batch, s.seq, s.heads, s.value_dim, true);
  const Buffer<T> o(s.batch, s.seq, s.heads, s.value_dim, true);
  const Buffer<T> o2(s.batch, s.seq, s.heads, s.value_dim, true);
  const Buffer<float> lse1(s.batch, s.seq, s.heads, 1, true);
  const Buffer<float> lse2(s.batch, s.seq, s.heads, 1, true);
  ForwardParams f;
  f.dtype = dtype;
  f.batch = s.batch, f.heads = s.heads, f.kv_heads = s.kv_heads;
  f.seq_q = f.seq_k = s.seq, f.head_dim = s.head_dim, f.value_dim = s.value_dim;
  f.q1 = q1.input(), f.q2 = q2.input(), f.k1 = k1.input(), f.v = v.input();
  f.k2 = s.shared_k ? k1.input() : k2.input();
  f.lambda = {lambda.data, 0, 0, 1};
  f.scale = f.scale2 = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  f.causal = s.causal;
  if (s.window != kNoWindow) f.window = Window::last(s.window);
  f.epilogue = {.norm = true, .norm_eps = 1e-5, .norm_weight = nullptr, .out_scale = 0.8};
  int32_t* offsets = nullptr;
  if (s.sequences > 0) {
    const std::vector<int32_t> host = offsets_of(s);
    check(cudaMalloc(&offsets, host.size() * sizeof(int32_t)));
    check(cudaMemcpy(offsets, host.data(), host.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    f.batch = s.sequences;
    f.cu_seqlens_q = f.cu_seqlens_k = offsets;
    f.total_q = f.total_k = s.seq;
    for (View<const void>* view : {&f.q1, &f.q2, &f.k1, &f.k2, &f.v}) view->batch_stride = 0;
  }
  // A packed tensor has no batch stride.
  const auto output = [&](auto view) {
    if (s.sequences > 0) view.batch_stride = 0;
    return view;
  };
  f.out = output(sm80.view);
  f.max_capability = 80;
  const float sm80_ms = median_ms([&] { forward(f, nullptr); }, 1, 3);
  f.max_capability = kNoCapabilityLimit;
  f.out = output(out.view);
  if (s.training) {
    f.o = output(o.view), f.o2 = output(o2.view);
    f.lse1 = output(lse1.view), f.lse2 = output(lse2.view);
  }
  const size_t bytes = forward_workspace_bytes(f);
  void* workspace = nullptr;
  check(cudaMalloc(&workspace, std::max<size_t>(bytes, 1)));
  const float ms = median_ms([&] { forward(f, workspace, nullptr); }, kWarmUps, kRepeats);
  double *sums = nullptr, host_sums[2];
  check(cudaMalloc(&sums, sizeof host_sums));
  check(cudaMemset(sums, 0, sizeof host_sums));
  distance_kernel<<<1024, 256, 0, nullptr>>>(out.data, sm80.data, out.count, sums);
  check(cudaMemcpy(host_sums, sums, sizeof host_sums, cudaMemcpyDeviceToHost));
  const double work = visible_pairs(s) * static_cast<double>(4 * s.head_dim + 4 * s.value_dim);
  std::printf(
      "%-28s %-8s D%-3lld Dv%-3lld H%lld/%lld %s %8.4f ms %6.1f TFLOP/s, sm80 %8.4f ms, "
      "distance %.2e\n",
      s.name, dtype == Dtype::kBFloat16 ? "bfloat16" : "float16", (long long)s.head_dim,
      (long long)s.value_dim, (long long)s.heads, (long long)s.kv_heads,
      bytes > 0 ? "sm90" : "sm80", ms, work / ms * 1e-9, sm80_ms,
      std::sqrt(host_sums[0] / host_sums[1]));
  std::fflush(stdout);
  cudaFree(sums);
  cudaFree(workspace);
  cudaFree(offsets);
}

std::vector<Setting> settings(int64_t d, int64_t dv, int64_t heads) {
  return {
      {"2k causal", 8, heads, heads, 2048, d, dv, true},
      {"4k causal", 4, heads, heads, 4096, d, dv, true},
      {"16k causal", 1, heads, heads, 16384, d, dv, true},
      {"4k full", 4, heads, heads, 4096, d, dv, false},
      {"4k causal, only out", 4, heads, heads, 4096, d, dv, true, kNoWindow, 0, false, false},
      {"4k causal, 4 heads a kv head", 4, heads, heads / 4, 4096, d, dv, true},
      {"4k causal, shared k", 4, heads, heads, 4096, d, dv, true, kNoWindow, 0, true},
      {"16k, window 1024", 1, heads, heads, 16384, d, dv, true, 1024},
      {"16k in 8 sequences, causal", 1, heads, heads, 16384, d, dv, true, kNoWindow, 8},
  };
}

}  // namespace
}  // namespace diffattn::cuda

int main(int argc, char** argv) {
  using namespace diffattn::cuda;
  using diffattn::Dtype;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: no GPU");
    return 0;
  }
  const std::string wanted = argc > 1 ? argv[1] : "", wanted_line = argc > 2 ? argv[2] : "";
  struct Shape {
    int64_t d, dv, heads;
  };
  try {
    for (const Shape shape :
         {Shape{64, 128, 16}, Shape{128, 256, 8}, Shape{64, 64, 16}, Shape{128, 128, 16}}) {
      const std::string label = "d" + std::to_string(shape.d) + "v" + std::to_string(shape.dv);
      if (label.find(wanted) == std::string::npos) continue;
      for (const Setting& s : settings(shape.d, shape.dv, shape.heads)) {
        if (std::string(s.name).find(wanted_line) == std::string::npos) continue;
        run<bfloat16>(Dtype::kBFloat16, s);
      }
      if (wanted_line.empty()) {
        run<float16>(Dtype::kFloat16, settings(shape.d, shape.dv, shape.heads)[1]);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
