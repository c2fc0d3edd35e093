// SPDX-License-Identifier: Apache-2.0
//
// Split-key decode in float32, for one query per sequence. `combine` merges its splits as it merges
// those of decode_kernel.
//
// A block computes one head of one sequence against split_keys keys. Each warp takes every
// kWarps-th group of kAtOnce keys; lane l holds columns l, l + 32, ... of q, k, v and o:
//
//   s1 = scale q1 k1^T, s2 = scale2 q2 k2^T
//   online softmax of each map: m, l, o                  in base 2
//
// Then the warps' m, l and o merge through shared memory.

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/programmatic_launch.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kAtOnce = 4;                    // keys of a warp's step; they share a page
constexpr int kKeyColumns = 128 / kWarpSize;  // per lane
constexpr int kValueColumns = 256 / kWarpSize;

struct Float32Arguments {
  Shape shape;
  Rows<const float> q1, q2;       // [B, 1, H, D]
  Rows<const float> k1, k2;       // [B, N, Hkv, D]
  Rows<const float> v;            // [B, N, Hkv, Dv]
  float scale_log2, scale2_log2;  // scale log2(e) of map 1 and map 2
  Pages pages;                    // of k1, k2 and v
  Partials partials;
};

/// The state of one map: row maximum, row sum and o, relative to the maximum.
struct MapState {
  float m = -INFINITY, l = 0.0f;
  float o[kValueColumns] = {};

  __device__ void update(const float (&s)[kAtOnce], const float (&v)[kAtOnce][kValueColumns]) {
    float top = m;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) top = fmaxf(top, s[u]);
    if (top == -INFINITY) return;  // no visible key yet
    const float decay = exp2f(m - top);
    m = top;
    l *= decay;
#pragma unroll
    for (int i = 0; i < kValueColumns; ++i) o[i] *= decay;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const float p = exp2f(s[u] - top);
      l += p;
#pragma unroll
      for (int i = 0; i < kValueColumns; ++i) o[i] += p * v[u][i];
    }
  }
};

struct Float32Smem {
  float o[2][kWarps][256];
  float m[2][kWarps], l[2][kWarps];
};

/// Loads a lane's columns of a row, with 0 behind its `width` columns.
template <int kColumns>
__device__ inline void load_columns(float (&x)[kColumns], const float* row, int width) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int c = static_cast<int>(threadIdx.x) % kWarpSize + i * kWarpSize;
    x[i] = c < width ? row[c] : 0.0f;
  }
}

struct Float32Decode {
  const Float32Arguments& args;
  Float32Smem& smem;
  const int b, h, split;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int kv_head = args.shape.kv_head(h);
  const int d = args.shape.head_dim, dv = args.shape.value_dim;

  MapState map1 = {}, map2 = {};

  __device__ void run() {
    ptx::wait_for_previous_kernel();
    const Sequence seq = args.shape.sequence(b);
    const UsedSplits used(seq, args.partials.split_keys);
    if (split < used.begin || split >= used.end) return;
    const int begin = split * args.partials.split_keys;
    const int end = min(begin + args.partials.split_keys, seq.end_visible(0));
    const int first = seq.first_visible(0);
    float q1[kKeyColumns], q2[kKeyColumns];
    load_columns(q1, args.q1.at(b, 0, h), d);
    load_columns(q2, args.q2.at(b, 0, h), d);
#pragma unroll 1
    for (int n0 = begin + warp * kAtOnce; n0 < end; n0 += kWarps * kAtOnce) {
      step(q1, q2, n0, first, end);
    }
    merge(0, map1);
    merge(1, map2);
  }

  __device__ void step(const float (&q1)[kKeyColumns], const float (&q2)[kKeyColumns], int n0,
                       int first, int end) {
    int batch = b, row = n0;
    if (args.pages.table != nullptr) {
      const int size = static_cast<int>(args.pages.size);
      batch = args.pages.table[b * args.pages.stride + n0 / size];
      row = n0 % size;
    }
    float s1[kAtOnce], s2[kAtOnce], v[kAtOnce][kValueColumns];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      // Hidden keys are not read: padding may hold anything, and 0 * inf would be NaN.
      const bool visible = n0 + u >= first && n0 + u < end;
      float k1[kKeyColumns], k2[kKeyColumns];
      load_columns(k1, args.k1.at(batch, row + u, kv_head), visible ? d : 0);
      load_columns(k2, args.k2.at(batch, row + u, kv_head), visible ? d : 0);
      load_columns(v[u], args.v.at(batch, row + u, kv_head), visible ? dv : 0);
      s1[u] = visible ? 0.0f : -INFINITY;
      s2[u] = s1[u];
#pragma unroll
      for (int i = 0; i < kKeyColumns; ++i) {
        s1[u] += q1[i] * k1[i];
        s2[u] += q2[i] * k2[i];
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      s1[u] = warp_sum(s1[u]) * args.scale_log2;
      s2[u] = warp_sum(s2[u]) * args.scale2_log2;
    }
    map1.update(s1, v);
    map2.update(s2, v);
  }

  /// Merges the warps' states of a map and stores the result.
  __device__ void merge(int map, const MapState& state) {
    const int column = static_cast<int>(threadIdx.x), pitch = args.partials.pitch;
    if (lane == 0) smem.m[map][warp] = state.m, smem.l[map][warp] = state.l;
    __syncthreads();  // all warps have stored their maximum
    float top = -INFINITY, sum = 0.0f, o = 0.0f;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, smem.m[map][w]);
    const float weight = state.m == -INFINITY ? 0.0f : exp2f(state.m - top);
#pragma unroll
    for (int i = 0; i < kValueColumns; ++i) {
      smem.o[map][warp][lane + i * kWarpSize] = state.o[i] * weight;
    }
    __syncthreads();  // all warps have stored their o
    const int64_t slot = args.partials.slot(map, split, b, 0, h);
    for (int w = 0; w < kWarps; ++w) {
      const float m = smem.m[map][w];
      sum += m == -INFINITY ? 0.0f : smem.l[map][w] * exp2f(m - top);
      o += smem.o[map][w][column];
    }
    if (column < pitch) args.partials.o[slot * pitch + column] = o;
    if (column == 0) args.partials.m[slot] = top, args.partials.l[slot] = sum;
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    float32_decode_kernel(const __grid_constant__ Float32Arguments args) {
  __shared__ Float32Smem smem;
  ptx::launch_dependents();
  const WorkTile work(blockIdx.x, args.shape.heads, args.partials.splits);
  Float32Decode{args, smem, work.b, work.h, work.tile}.run();
}

}  // namespace

void launch_float32_decode(const ForwardParams& params, const Partials& partials,
                           cudaStream_t stream) {
  const Float32Arguments args{.shape = shape_of(params),
                              .q1 = rows_of<const float>(params.q1),
                              .q2 = rows_of<const float>(params.q2),
                              .k1 = rows_of<const float>(params.k1),
                              .k2 = rows_of<const float>(params.k2),
                              .v = rows_of<const float>(params.v),
                              .scale_log2 = static_cast<float>(params.scale * kLog2E),
                              .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
                              .pages = params.pages,
                              .partials = partials};
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * partials.splits);
  check(cudaFuncSetAttribute(float32_decode_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "float32 decode", params);
  launch_programmatic_if_supported(float32_decode_kernel, blocks, kThreads, 0, stream, params,
                                   "float32 decode", args);
}

}  // namespace diffattn::cuda::sm80
