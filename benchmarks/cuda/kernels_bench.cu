// SPDX-License-Identifier: Apache-2.0
//
// Times the CUDA kernels alone. Prints one line per shape: median and spread of kRepeats launches
// between events, and TFLOP/s of useful work. Useful work per visible (query, key) pair is
// 4 D + 4 Dv forward (the scores of both maps, P1 v and P2 v) and 12 D + 4 Dv backward.
//
// cuda_kernels_bench [text] [capability]: runs only the lines that contain the text, without
// kernels for GPUs newer than that compute capability (80: the sm80 kernels).

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "benchmarks/cuda/random_data.cuh"
#include "benchmarks/cuda/timing.cuh"
#include "diffattn/kernels/cuda.h"

namespace diffattn::cuda {
namespace {

/// A dense tensor [B, L, H, W] of random numbers in device memory.
struct Buffer {
  void* data = nullptr;
  int64_t batch_stride = 0, seq_stride = 0, head_stride = 0;

  Buffer(Dtype dtype, int64_t batch, int64_t seq, int64_t heads, int64_t width)
      : batch_stride(seq * heads * width), seq_stride(heads * width), head_stride(width) {
    const int64_t count = batch * seq * heads * width;
    check(cudaMalloc(&data, count * (dtype == Dtype::kFloat32 ? 4 : 2)));
    switch (dtype) {
      case Dtype::kFloat32: fill(static_cast<float*>(data), count); break;
      case Dtype::kFloat16: fill(static_cast<float16*>(data), count); break;
      default: fill(static_cast<bfloat16*>(data), count); break;
    }
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  operator View<void>() const { return {data, batch_stride, seq_stride, head_stride}; }
  operator View<const void>() const { return {data, batch_stride, seq_stride, head_stride}; }
};

constexpr int64_t kNoWindow = -1;

struct Setting {
  Dtype dtype;
  int64_t batch, heads, kv_heads, seq_q, seq_k, head_dim, value_dim;
  bool causal, backward;
  bool norm = true;
  int64_t window = kNoWindow;
  bool deterministic = false;       // backward only
  MaskKind mask = MaskKind::kNone;  // [M, N] for all heads; an additive mask has the type of q
};

const char* name_of(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? "float32" : dtype == Dtype::kFloat16 ? "float16" : "bfloat16";
}

std::string label_of(const Setting& s) {
  char text[160];
  const char* const mask = s.mask == MaskKind::kBoolean    ? " mask"
                           : s.mask == MaskKind::kAdditive ? " bias"
                                                           : "";
  std::snprintf(text, sizeof text,
                "%-8s %-8s B%-3lld H%lld/%lld M%-6lld N%-6lld D%-3lld Dv%-3lld %-6s%s%s%s%s",
                s.backward ? "backward" : "forward", name_of(s.dtype), (long long)s.batch,
                (long long)s.heads, (long long)s.kv_heads, (long long)s.seq_q, (long long)s.seq_k,
                (long long)s.head_dim, (long long)s.value_dim, s.causal ? "causal" : "full",
                s.norm ? " norm" : "", s.window == kNoWindow ? "" : " window",
                s.deterministic ? " deterministic" : "", mask);
  return text;
}

template <class Launch>
void time_and_print(const Setting& s, double work, Launch launch) {
  const Times times = times_of(launch);
  std::printf("%s %9.4f ms [%.4f, %.4f] %7.1f TFLOP/s\n", label_of(s).c_str(), times.median,
              times.least, times.most, work / times.median * 1e-9);
  std::fflush(stdout);
}

std::string wanted;  // runs only settings whose line contains this text
int max_capability = kNoCapabilityLimit;

void run(const Setting& s) {
  if (label_of(s).find(wanted) == std::string::npos) return;
  const Buffer q1(s.dtype, s.batch, s.seq_q, s.heads, s.head_dim);
  const Buffer q2(s.dtype, s.batch, s.seq_q, s.heads, s.head_dim);
  const Buffer k1(s.dtype, s.batch, s.seq_k, s.kv_heads, s.head_dim);
  const Buffer k2(s.dtype, s.batch, s.seq_k, s.kv_heads, s.head_dim);
  const Buffer v(s.dtype, s.batch, s.seq_k, s.kv_heads, s.value_dim);
  const Buffer lambda(Dtype::kFloat32, 1, 1, s.heads, 1);
  const Buffer out(s.dtype, s.batch, s.seq_q, s.heads, s.value_dim);
  const Buffer lse1(Dtype::kFloat32, s.batch, s.seq_q, s.heads, 1);
  const Buffer lse2(Dtype::kFloat32, s.batch, s.seq_q, s.heads, 1);
  ForwardParams f;
  f.dtype = s.dtype;
  f.batch = s.batch, f.heads = s.heads, f.kv_heads = s.kv_heads;
  f.seq_q = s.seq_q, f.seq_k = s.seq_k, f.head_dim = s.head_dim, f.value_dim = s.value_dim;
  f.q1 = q1, f.q2 = q2, f.k1 = k1, f.k2 = k2, f.v = v;
  f.lambda = {lambda.data, 0, 0, 1};
  f.scale = f.scale2 = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  f.causal = s.causal;
  f.max_capability = max_capability;
  if (s.window != kNoWindow) f.window = Window::last(s.window);
  f.epilogue.norm = s.norm;
  f.epilogue.norm_eps = 1e-5;
  f.epilogue.out_scale = s.norm ? 0.8 : 1.0;
  f.out = out, f.lse1 = lse1, f.lse2 = lse2;
  const bool masked = s.mask != MaskKind::kNone;
  const Buffer mask(s.dtype, 1, masked ? s.seq_q : 1, 1, masked ? s.seq_k : 1);
  if (s.mask == MaskKind::kBoolean) {
    fill_bytes(static_cast<uint8_t*>(mask.data), s.seq_q * s.seq_k);
  }
  f.mask = {s.mask, s.dtype, mask.data, {0, 0, s.seq_k, 1}};
  double pairs = static_cast<double>(s.seq_q) * s.seq_k;
  if (s.causal) pairs -= static_cast<double>(s.seq_q) * (s.seq_q - 1) / 2;
  if (s.window != kNoWindow) {  // assumes seq_q = seq_k
    pairs -= static_cast<double>(s.seq_q - s.window) * (s.seq_q - s.window + 1) / 2;
  }
  pairs *= static_cast<double>(s.batch * s.heads);
  if (!s.backward) {
    const auto bytes = static_cast<int64_t>(forward_workspace_bytes(f));
    const Buffer workspace(Dtype::kFloat32, 1, 1, 1, bytes / 4 + 1);
    time_and_print(s, pairs * (4 * s.head_dim + 4 * s.value_dim),
                   [&] { forward(f, bytes == 0 ? nullptr : workspace.data, nullptr); });
    return;
  }
  const Buffer dout(s.dtype, s.batch, s.seq_q, s.heads, s.value_dim);
  const Buffer o(s.dtype, s.batch, s.seq_q, s.heads, s.value_dim);
  const Buffer o2(s.dtype, s.batch, s.seq_q, s.heads, s.value_dim);
  f.o = o, f.o2 = o2;
  // Two bytes per element: one for o_rest, one for o2_rest.
  const Buffer rests(Dtype::kBFloat16, s.batch, s.seq_q, s.heads, s.value_dim);
  if (s.dtype != Dtype::kFloat32) {
    char* const second = static_cast<char*>(rests.data) + s.batch * s.seq_q * s.heads * s.value_dim;
    f.o_rest = {rests.data, o.batch_stride, o.seq_stride, o.head_stride};
    f.o2_rest = {second, o.batch_stride, o.seq_stride, o.head_stride};
  }
  forward(f, nullptr);
  const Buffer dq1(s.dtype, s.batch, s.seq_q, s.heads, s.head_dim);
  const Buffer dq2(s.dtype, s.batch, s.seq_q, s.heads, s.head_dim);
  const Buffer dk1(s.dtype, s.batch, s.seq_k, s.kv_heads, s.head_dim);
  const Buffer dk2(s.dtype, s.batch, s.seq_k, s.kv_heads, s.head_dim);
  const Buffer dv(s.dtype, s.batch, s.seq_k, s.kv_heads, s.value_dim);
  const Buffer dlambda(Dtype::kFloat32, 1, 1, s.heads, 1);
  BackwardParams g;
  static_cast<Problem&>(g) = f;
  g.v = v, g.epilogue = f.epilogue, g.dout = dout;
  g.lse1 = lse1, g.lse2 = lse2, g.o = o, g.o2 = o2;
  g.o_rest = {f.o_rest.data, o.batch_stride, o.seq_stride, o.head_stride};
  g.o2_rest = {f.o2_rest.data, o.batch_stride, o.seq_stride, o.head_stride};
  g.deterministic = s.deterministic;
  g.dq1 = dq1, g.dq2 = dq2, g.dk1 = dk1, g.dk2 = dk2, g.dv = dv;
  g.dlambda = {dlambda.data, 0, 0, 1};
  const Buffer workspace(Dtype::kFloat32, 1, 1, 1,
                         static_cast<int64_t>(backward_workspace_bytes(g) / 4));
  time_and_print(s, pairs * (12 * s.head_dim + 4 * s.value_dim),
                 [&] { backward(g, workspace.data, nullptr); });
}

}  // namespace
}  // namespace diffattn::cuda

int main(int argc, char** argv) {
  if (argc > 1) diffattn::cuda::wanted = argv[1];
  if (argc > 2) diffattn::cuda::max_capability = std::atoi(argv[2]);
  using diffattn::Dtype;
  using diffattn::MaskKind;
  using diffattn::cuda::kNoWindow;
  using diffattn::cuda::run;
  try {
    if (!diffattn::cuda::print_gpu()) return 0;
    for (const bool backward : {false, true}) {
      for (const int64_t seq : {2048, 4096, 16384}) {
        const int64_t batch = 32768 / seq;
        run({Dtype::kBFloat16, batch, 16, 16, seq, seq, 64, 128, true, backward});
        run({Dtype::kBFloat16, batch, 8, 8, seq, seq, 128, 256, true, backward});
      }
      run({Dtype::kBFloat16, 8, 16, 16, 4096, 4096, 64, 128, false, backward});
      run({Dtype::kBFloat16, 8, 8, 8, 4096, 4096, 128, 256, false, backward});
      run({Dtype::kBFloat16, 8, 16, 16, 4096, 4096, 32, 64, true, backward});
      run({Dtype::kBFloat16, 8, 16, 16, 4096, 4096, 64, 64, true, backward});
      run({Dtype::kBFloat16, 8, 8, 8, 4096, 4096, 96, 192, true, backward});
      run({Dtype::kBFloat16, 8, 16, 4, 4096, 4096, 128, 128, true, backward});
      run({Dtype::kFloat16, 8, 16, 16, 4096, 4096, 64, 128, true, backward});
      for (const int64_t seq : {2048, 4096, 16384}) {  // 16k tokens, as in the tables of peers.py
        run({Dtype::kBFloat16, 16384 / seq, 16, 16, seq, seq, 64, 128, true, backward, false});
      }
      run({Dtype::kBFloat16, 4, 16, 16, 4096, 4096, 64, 128, false, backward, false});
      run({Dtype::kBFloat16, 4, 16, 4, 4096, 4096, 64, 128, true, backward, false});
      run({Dtype::kBFloat16, 1, 16, 16, 16384, 16384, 64, 128, true, backward, false, 1024});
      for (const MaskKind mask : {MaskKind::kBoolean, MaskKind::kAdditive}) {
        run({Dtype::kBFloat16, 4, 16, 16, 4096, 4096, 64, 128, false, backward, false, kNoWindow,
             false, mask});
      }
      if (backward) {
        for (const int64_t seq : {2048, 4096, 16384}) {
          run({Dtype::kBFloat16, 16384 / seq, 16, 16, seq, seq, 64, 128, true, true, false,
               kNoWindow, true});
        }
        run({Dtype::kBFloat16, 4, 16, 16, 4096, 4096, 64, 128, false, true, false, kNoWindow,
             true});
      }
      if (!backward) {  // decoding
        run({Dtype::kBFloat16, 1, 32, 8, 1, 32768, 64, 128, true, false});
        run({Dtype::kBFloat16, 8, 32, 8, 1, 8192, 64, 128, true, false});
        run({Dtype::kBFloat16, 8, 16, 4, 1, 16384, 128, 256, true, false});
        run({Dtype::kBFloat16, 1, 8, 8, 16, 32768, 64, 128, true, false});
      }
      run({Dtype::kFloat32, 2, 16, 16, 4096, 4096, 64, 128, true, backward});
      run({Dtype::kBFloat16, 1, 8, 8, 2048, 2048, 256, 256, true, backward});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
