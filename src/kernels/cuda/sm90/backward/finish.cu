// SPDX-License-Identifier: Apache-2.0
//
// The small kernels after the main one.
//   finish_dq_kernel  scales and rounds the sums of dq: dq1 = scale ds1 k1, dq2 = scale2 ds2 k2,
//                     [B, M, H, D]. One block per unit of 64 rows of one head; the first 128
//                     threads take map 1, the others map 2. The sums are in fragment order; shared
//                     memory transposes them into rows.
//   sum_parts_kernel  sums the units' parts of dnorm_weight [Dv] and dlambda, one block per result.

#include "kernels/cuda/check.h"
#include "kernels/cuda/sm90/backward/launch.h"

namespace diffattn::cuda::sm90 {
namespace {

constexpr int kThreads = 256;

template <class T>
struct FinishArguments {
  Shape shape;
  TileNumbers units;
  int unit_count;
  const float* dq_sums;  // [H, unit_count, 2 maps, 4 warps, D / 8, 32 lanes, 4]
  Rows<T> dq1, dq2;      // [B, M, H, D] or null
  float scale, scale2;
};

template <class T, int kD>
__global__ void __launch_bounds__(kThreads)
    finish_dq_kernel(const __grid_constant__ FinishArguments<T> args) {
  __shared__ __align__(16) uint32_t rows[2][kUnitRows][kD / 2 + 4];  // padded by 16 bytes
  constexpr int kChunks = kD / 8;                                    // 16-byte chunks of a row
  const int h = static_cast<int>(blockIdx.x) / args.unit_count;
  const int unit = static_cast<int>(blockIdx.x) % args.unit_count;
  const int b = args.units.sequence(unit, args.shape.batch);
  const Sequence seq = args.shape.sequence(b);
  const int m0 = (unit - args.units.first(b)) * kUnitRows;
  if (m0 >= seq.seq_q) return;

  const int map = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int lane = thread % 32, warp = thread / 32, row = 16 * warp + lane / 4;
  const int64_t number = static_cast<int64_t>(h) * args.unit_count + unit;
  const float4* const sums = reinterpret_cast<const float4*>(args.dq_sums) +
                             ((number * 2 + map) * 4 + warp) * (kD * 4) + lane;
  const float scale = map == 0 ? args.scale : args.scale2;
#pragma unroll
  for (int i = 0; i < kD / 8; ++i) {
    const float4 x = sums[i * 32];
    rows[map][row][4 * i + lane % 4] = pack<T>(x.x * scale, x.y * scale);
    rows[map][row + 8][4 * i + lane % 4] = pack<T>(x.z * scale, x.w * scale);
  }
  __syncthreads();  // all rows are written
  const Rows<T>& dq = map == 0 ? args.dq1 : args.dq2;
  if (dq.data == nullptr) return;
#pragma unroll
  for (int j = 0; j < kUnitRows * kChunks / 128; ++j) {
    const int m = (j * 128 + thread) / kChunks, chunk = thread % kChunks;
    if (m0 + m >= seq.seq_q) continue;
    *reinterpret_cast<uint4*>(dq.at(b, seq.q_begin + m0 + m, h) + chunk * 8) =
        *reinterpret_cast<const uint4*>(&rows[map][m][chunk * 4]);
  }
}

template <class T, int kD>
void finish(const BackwardParams& params, const BackwardWorkspace& workspace, cudaStream_t stream) {
  const FinishArguments<T> args{.shape = shape_of(params),
                                .units = tile_numbers(params.cu_seqlens_q, params.seq_q, kUnitRows),
                                .unit_count = static_cast<int>(unit_count(params)),
                                .dq_sums = workspace.units.dq_sums,
                                .dq1 = rows_of<T>(params.dq1),
                                .dq2 = rows_of<T>(params.dq2),
                                .scale = static_cast<float>(params.scale),
                                .scale2 = static_cast<float>(params.scale2)};
  const auto blocks = static_cast<unsigned>(args.unit_count * params.heads);
  finish_dq_kernel<T, kD><<<blocks, kThreads, 0, stream>>>(args);
  check_launch("sm90 backward, rounding of dq", params);
}

/// Computes out [n] = sum over parts [n, count], one block per result, in a fixed order.
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const float* parts, float* out, int64_t count) {
  __shared__ float sums[kThreads];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[blockIdx.x * count + i];
  sums[threadIdx.x] = sum;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();  // the sums of the previous round are written
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

}  // namespace

void finish_dnorm(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream) {
  if (params.dnorm_weight == nullptr) return;
  sum_parts_kernel<<<static_cast<unsigned>(params.value_dim), kThreads, 0, stream>>>(
      workspace.dnorm_parts, static_cast<float*>(params.dnorm_weight),
      unit_count(params) * params.heads);
  check_launch("sm90 backward, sum of dnorm_weight", params);
}

bool finish_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream) {
  const View<void>& out = params.dlambda;
  if (!out) return true;
  const bool by_head = out.head_stride == 1;
  if (out.batch_stride != 0 || out.seq_stride != 0 || (!by_head && out.head_stride != 0)) {
    return false;
  }
  const int64_t units = unit_count(params);
  sum_parts_kernel<<<static_cast<unsigned>(by_head ? params.heads : 1), kThreads, 0, stream>>>(
      workspace.units.dlambda_parts, static_cast<float*>(out.data),
      by_head ? units : units * params.heads);
  check_launch("sm90 backward, sum of dlambda", params);
  return true;
}

void finish_dq(const BackwardParams& params, const BackwardWorkspace& workspace,
               cudaStream_t stream) {
  if (!params.dq1 && !params.dq2) return;
  const bool bf16 = params.dtype == Dtype::kBFloat16;
  if (params.head_dim == 64) {
    return bf16 ? finish<bfloat16, 64>(params, workspace, stream)
                : finish<float16, 64>(params, workspace, stream);
  }
  return bf16 ? finish<bfloat16, 128>(params, workspace, stream)
              : finish<float16, 128>(params, workspace, stream);
}

}  // namespace diffattn::cuda::sm90
