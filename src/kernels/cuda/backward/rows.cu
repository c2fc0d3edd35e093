// SPDX-License-Identifier: Apache-2.0
//
// Row pass of the backward, one warp per row (b, m, h). With g = out_scale * weight * dout
// (elementwise) and rstd = 1 / sqrt(mean(O^2) + eps), or 1 without norm:
//
//   dO     = rstd (g - O rstd^2 mean(g * O))      [Dv]; the second term only with norm
//   delta2 = dO.o2,  delta1 = dO.O + lambda delta2
//   minus_dlambda = dO.o2                         with dO before its rounding
//   dnorm_weight = sum over rows of out_scale * dout * O * rstd
//
// dnorm_weight is summed per warp in registers, per block in shared memory, and over blocks by a
// second kernel, each in a fixed order. All arithmetic is in float; the store rounds dO to T.
// delta1 and delta2 use the rounded dO, because the products with v and k use it too. minus_dlambda
// uses the unrounded dO: with a norm, dO is nearly orthogonal to O, and the terms of dO.o2 cancel.
// Rows with a very large lse get a scaled dO and lambda instead (row_softmax.cuh).
//
// A row that sees one key has p = 1, and its ds1 and ds2 are 0. In float, dO.v of that key and
// delta differ by rounding errors, so the float32 kernels multiply ds by a factor that is 0 there.

#include "kernels/cuda/backward/row_arguments.cuh"
#include "kernels/cuda/backward/whole_rows.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/rest.cuh"

namespace diffattn::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxWidth = 256;

/// Columns lane, lane + 32, ... of a saved row. The constructor only issues the loads, and `value`
/// uses them, so that all loads of a row are in flight together.
template <class U, int kPerLane>
struct SavedColumns {
  U values[kPerLane];
  int rests[kPerLane];  // rounding errors, see rest.cuh

  __device__ SavedColumns(const U* row, const int8_t* rest, int lane, int width) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + i * kWarpSize;
      values[i] = c < width ? row[c] : narrow<U>(0.0f);
      rests[i] = 0;
    }
    if (sizeof(U) != 2 || rest == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + i * kWarpSize;
      if (c < width) rests[i] = rest[c];
    }
  }
  __device__ float value(int i) const {
    if constexpr (sizeof(U) == 2) {
      return with_rest(values[i], rests[i]);
    } else {
      return values[i];
    }
  }
};

/// True if row m sees one column only. All lanes of a warp must call it, for the same row. Under a
/// mask they search it together until they have found two columns.
__device__ inline bool is_one_visible(const HeadMask& mask, int m) {
  const int begin = max(0, mask.seq.first_visible(m)), end = mask.seq.end_visible(m);
  if (mask.shape.mask.kind == MaskKind::kNone) return end - begin == 1;
  int found = 0;
  for (int n = begin; n < end && found < 2; n += kWarpSize) {
    const int mine = n + static_cast<int>(threadIdx.x) % kWarpSize;
    const bool visible = mine < end && mask.bias(m, mine) != -INFINITY;
    found += __popc(__ballot_sync(0xffffffffu, visible));
  }
  return found == 1;
}

/// Computes rows with up to kPerLane columns per lane.
template <class T, class U, int kPerLane>
struct PrepareRow {
  const RowsArguments<T, U>& args;
  const int lane = threadIdx.x % kWarpSize;
  float dweight[kPerLane] = {};  // columns lane, lane + 32, ...
  float gain[kPerLane];

  __device__ explicit PrepareRow(const RowsArguments<T, U>& args) : args(args) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + i * kWarpSize;
      gain[i] = c < args.shape.value_dim ? args.epilogue.gain(c) : 0.0f;
    }
  }

  __device__ void run(int b, int m, int h) {
    const Sequence seq = args.shape.sequence(b);
    if (m >= seq.seq_q) return;
    const int64_t l = seq.q_begin + m;
    const int width = args.shape.value_dim;
    const float lse1 = *args.lse1.at(b, l, h), lse2 = *args.lse2.at(b, l, h);
    const bool dead = lse1 == -INFINITY;
    const T* const dout_row = args.dout.at(b, l, h);
    const U* const o_row = args.o.at(b, l, h);
    const U* const o2_row = args.o2.at(b, l, h);
    const int8_t* const o_rest = args.o_rest.at_or_null(b, l, h);
    const int8_t* const o2_rest = args.o2_rest.at_or_null(b, l, h);

    const SavedColumns<T, kPerLane> dout(dout_row, nullptr, lane, width);
    const SavedColumns<U, kPerLane> saved_o(o_row, o_rest, lane, width);
    const SavedColumns<U, kPerLane> saved_o2(o2_row, o2_rest, lane, width);
    const float lambda = *args.lambda.at(b, l, h);
    float o[kPerLane], o2[kPerLane], g[kPerLane];
    float squares = 0.0f, inner = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      o[i] = dead ? 0.0f : saved_o.value(i);
      o2[i] = dead ? 0.0f : saved_o2.value(i);
      g[i] = dead ? 0.0f : dout.value(i);
      squares += o[i] * o[i];
      inner += g[i] * gain[i] * o[i];
    }
    float rstd = 1.0f, projection = 0.0f;
    if (args.epilogue.norm && !dead) {
      rstd = 1.0f / sqrtf(warp_sum(squares) / width + args.epilogue.eps);
      projection = rstd * rstd * warp_sum(inner) / width;
    }
    RowSoftmaxes maps{{lse1 * kLog2E, 1.0f}, {lse2 * kLog2E, 1.0f}};
    if (args.scores.is_needed(args.shape, lse1)) maps = args.scores.softmax(args.shape, b, m, h);
    const float inverse_sum = 1.0f / maps.map1.sum;
    T* const d_o_row = args.d_o.at(b, l, h);
    float delta = 0.0f, delta2 = 0.0f, minus_dlambda = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int c = lane + i * kWarpSize;
      if (c >= width) continue;
      dweight[i] += args.epilogue.out_scale * g[i] * o[i] * rstd;
      const float exact = dead ? 0.0f : rstd * (g[i] * gain[i] - o[i] * projection);
      const T d_o = narrow<T>(exact * inverse_sum);
      d_o_row[c] = d_o;
      delta += widen(d_o) * o[i];
      delta2 += widen(d_o) * o2[i];
      minus_dlambda += exact * o2[i];
    }
    store_state(b, l, h, dead, dead ? 0.0f : lambda, maps, warp_sum(delta), warp_sum(delta2),
                warp_sum(minus_dlambda));
    if (args.ds_factors.data == nullptr) return;
    const bool only_key = !dead && is_one_visible(HeadMask(args.shape, seq, b, h), m);
    if (lane == 0) *args.ds_factors.at(b, l, h) = only_key ? 0.0f : 1.0f;
  }

  __device__ void store_state(int b, int64_t l, int h, bool dead, float lambda,
                              const RowSoftmaxes& maps, float delta, float delta2,
                              float minus_dlambda) const {
    if (lane != 0) return;
    *args.state.lse1.at(b, l, h) = dead ? INFINITY : maps.map1.row_max;
    *args.state.lse2.at(b, l, h) = dead ? INFINITY : maps.map2.row_max;
    *args.state.delta1.at(b, l, h) = delta + lambda * delta2;
    *args.state.delta2.at(b, l, h) = delta2;
    *args.state.lambda.at(b, l, h) = lambda * maps.map1.sum / maps.map2.sum;
    *args.state.minus_dlambda.at(b, l, h) = minus_dlambda;
  }
};

template <class T, class U, int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    prepare_rows_kernel(const __grid_constant__ RowsArguments<T, U> args) {
  __shared__ float parts[kWarps][kPerLane * kWarpSize];
  if (args.only_if != nullptr && *args.only_if == 0) return;
  PrepareRow<T, U, kPerLane> row(args);
  const Shape& shape = args.shape;
  const int64_t count = static_cast<int64_t>(shape.batch) * shape.seq_q * shape.heads;
  const int warp = threadIdx.x / kWarpSize;
  for (int64_t i = blockIdx.x * kWarps + warp; i < count; i += kRowBlocks * kWarps) {
    const int64_t position = i / shape.heads;
    row.run(static_cast<int>(position / shape.seq_q), static_cast<int>(position % shape.seq_q),
            static_cast<int>(i % shape.heads));
  }
  if (args.dnorm_parts == nullptr) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) parts[warp][row.lane + i * kWarpSize] = row.dweight[i];
  __syncthreads();  // all warps have written their partial sums
  for (int c = threadIdx.x; c < shape.value_dim; c += kWarps * kWarpSize) {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += parts[w][c];
    args.dnorm_parts[static_cast<int64_t>(blockIdx.x) * shape.value_dim + c] = sum;
  }
}

/// Sums dnorm_weight [width] over the row pass's blocks. One warp per column, in a fixed order.
__global__ void __launch_bounds__(kWarpSize)
    reduce_dnorm_kernel(const float* parts, float* dnorm_weight, int width) {
  float sum = 0.0f;
  for (int block = threadIdx.x; block < kRowBlocks; block += kWarpSize) {
    sum += parts[static_cast<int64_t>(block) * width + blockIdx.x];
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) dnorm_weight[blockIdx.x] = sum;
}

/// True if whole_rows.cuh supports the problem: no additive mask, no factors of ds, and every row
/// can be read in chunks of 8 columns (16 bytes, or 8 bytes of rests).
bool has_whole_rows(const BackwardParams& params, const BackwardWorkspace& workspace) {
  const int64_t width = params.value_dim;
  const auto has_rests = [&](const View<const void>& rest) {
    return !rest ||
           (reinterpret_cast<uintptr_t>(rest.data) % 8 == 0 && rest.batch_stride % 8 == 0 &&
            rest.seq_stride % 8 == 0 && rest.head_stride % 8 == 0);
  };
  return params.mask.kind != MaskKind::kAdditive && workspace.row_factors.ds.data == nullptr &&
         width <= kMaxWidth && has_aligned_rows(params.dout, width) &&
         has_aligned_rows(params.o, width) && has_aligned_rows(params.o2, width) &&
         has_aligned_rows(workspace.d_o, width) && has_rests(params.o_rest) &&
         has_rests(params.o2_rest);
}

template <class T, class U>
void launch_any_rows(const RowsArguments<T, U>& args, const BackwardParams& params,
                     cudaStream_t stream) {
  if (args.sums != nullptr) {
    check(cudaMemsetAsync(args.sums, 0, args.sum_chunks * sizeof(uint4), stream),
          "backward over rows: sums of dq", params);
  }
  prepare_rows_kernel<T, U, kMaxWidth / kWarpSize>
      <<<kRowBlocks, kWarps * kWarpSize, 0, stream>>>(args);
}

template <class T, class U>
void prepare(const BackwardParams& params, const View<const void>& o, const View<const void>& o2,
             const BackwardWorkspace& workspace, const int* only_if, cudaStream_t stream) {
  const bool for_repair = only_if != nullptr;
  const RowsArguments<T, U> args{
      .shape = shape_of(params),
      .dout = rows_of<const T>(params.dout),
      .o = rows_of<const U>(o),
      .o2 = rows_of<const U>(o2),
      .o_rest = rows_of<const int8_t>(params.o_rest),
      .o2_rest = rows_of<const int8_t>(params.o2_rest),
      .lse1 = rows_of<const float>(params.lse1),
      .lse2 = rows_of<const float>(params.lse2),
      .lambda = rows_of<const float>(params.lambda),
      .epilogue = epilogue_of(params.epilogue),
      .scores = {.q1 = rows_of<const T>(params.q1),
                 .q2 = rows_of<const T>(params.q2),
                 .k1 = rows_of<const T>(params.k1),
                 .k2 = rows_of<const T>(params.k2),
                 .scale_log2 = static_cast<float>(params.scale * kLog2E),
                 .scale2_log2 = static_cast<float>(params.scale2 * kLog2E)},
      .d_o = rows_of<T>(workspace.d_o),
      .state = workspace.state,
      .ds_factors = workspace.row_factors.ds,
      .dnorm_parts = for_repair ? nullptr : workspace.dnorm_parts,
      .only_if = only_if,
      .sums = for_repair ? nullptr : reinterpret_cast<uint4*>(workspace.dq_sums),
      .sum_chunks = workspace.dq_sum_bytes / static_cast<int64_t>(sizeof(uint4))};
  const int64_t count = params.batch * params.seq_q * params.heads;
  if constexpr (sizeof(T) == 2 && __is_same(T, U)) {
    if (!for_repair && has_whole_rows(params, workspace) && count < int64_t{1} << 31) {
      const auto kernel = params.value_dim <= 128 ? prepare_whole_rows_kernel<T, 1, kWarps>
                                                  : prepare_whole_rows_kernel<T, 2, kWarps>;
      kernel<<<kRowBlocks, kWarps * kWarpSize, 0, stream>>>(args, static_cast<int>(count));
    } else {
      launch_any_rows(args, params, stream);
    }
  } else {
    launch_any_rows(args, params, stream);
  }
  check_launch("backward over rows", params);
  if (for_repair || params.dnorm_weight == nullptr) return;
  const auto width = static_cast<unsigned>(params.value_dim);
  reduce_dnorm_kernel<<<width, kWarpSize, 0, stream>>>(
      workspace.dnorm_parts, static_cast<float*>(params.dnorm_weight), static_cast<int>(width));
  check_launch("sum of dnorm_weight", params);
}

template <class T>
void prepare_from(const BackwardParams& params, const BackwardWorkspace& workspace,
                  const int* only_if, cudaStream_t stream) {
  if (params.o && params.o2) {
    prepare<T, T>(params, params.o, params.o2, workspace, only_if, stream);
  } else {
    prepare<T, float>(params, as_input(workspace.o), as_input(workspace.o2), workspace, only_if,
                      stream);
  }
}

}  // namespace

void prepare_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream, const int* only_if) {
  switch (params.dtype) {
    case Dtype::kBFloat16: return prepare_from<bfloat16>(params, workspace, only_if, stream);
    case Dtype::kFloat16: return prepare_from<float16>(params, workspace, only_if, stream);
    default: return prepare_from<float>(params, workspace, only_if, stream);
  }
}

}  // namespace diffattn::cuda
