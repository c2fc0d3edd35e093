// SPDX-License-Identifier: Apache-2.0
//
// Decides which problems the Hopper backward takes, and launches its steps.

#include "kernels/cuda/sm90/backward/launch.h"

#include <cmath>

#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/sm90/backward/config.h"
#include "kernels/cuda/sm90/mask_biases.h"
#include "kernels/cuda/sm90/mask_words.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace diffattn::cuda::sm90 {
namespace {

constexpr int kCapability = 90;  // sm_90a: no later GPU has its instructions

BoxedTensor boxed(const BackwardParams& params, const View<const void>& view, bool query,
                  int64_t width) {
  const bool packed = params.cu_seqlens_q != nullptr;
  const int64_t rows =
      query ? (packed ? params.total_q : params.seq_q) : (packed ? params.total_k : params.seq_k);
  return {view, packed ? 1 : params.batch, rows, query ? params.heads : params.kv_heads, width};
}

bool has_widths(int64_t d, int64_t dv) { return (d == 64 || d == 128) && (dv == d || dv == 2 * d); }

bool has_shape(const BackwardParams& params) {
  constexpr int64_t kMaxUnits = int64_t{1} << 20, kMaxGroup = 1 << 11;  // item: head << 20 | unit
  constexpr double kSmall = 1e-6, kLarge = 1e6;  // range of scales, by which lse is divided
  const auto usual = [](double scale) { return scale > kSmall && scale < kLarge; };
  const bool has_pairs =
      params.batch > 0 && params.kv_heads > 0 && params.seq_q > 0 && params.seq_k > 0;
  return (params.dtype == Dtype::kBFloat16 || params.dtype == Dtype::kFloat16) &&
         has_widths(params.head_dim, params.value_dim) &&
         (params.mask.kind == MaskKind::kNone || takes_mask(params, params.value_dim)) &&
         has_pairs && usual(params.scale) && usual(params.scale2) &&
         params.seq_q / kUnitRows < kMaxUnits && params.heads / params.kv_heads < kMaxGroup &&
         unit_count(params) * params.heads < (int64_t{1} << 31);
}

bool has_aligned_tensors(const BackwardParams& params) {
  const auto boxes = [&](const View<const void>& view, bool query, int64_t width) {
    return can_box(boxed(params, view, query, width));
  };
  const auto aligned = [](const auto& view, int64_t width) {
    return !view || has_aligned_rows(view, width);
  };
  const auto rests_aligned = [](const View<const void>& view) {
    return !view ||
           (reinterpret_cast<uintptr_t>(view.data) % 8 == 0 && view.batch_stride % 8 == 0 &&
            view.seq_stride % 8 == 0 && view.head_stride % 8 == 0);
  };
  const int64_t d = params.head_dim, value = params.value_dim;
  return boxes(params.q1, true, d) && boxes(params.q2, true, d) && boxes(params.k1, false, d) &&
         boxes(params.k2, false, d) && boxes(params.v, false, value) &&
         aligned(params.dout, value) && aligned(params.o, value) && aligned(params.o2, value) &&
         rests_aligned(params.o_rest) && rests_aligned(params.o2_rest) && aligned(params.dq1, d) &&
         aligned(params.dq2, d) && aligned(params.dk1, d) && aligned(params.dk2, d) &&
         aligned(params.dv, value);
}

template <class T, int kD, int kValue>
void steps(const BackwardParams& params, const BackwardWorkspace& workspace, cudaStream_t stream) {
  launch_rows<T, kD, kValue>(params, workspace, stream);
  launch_backward<T, kD, kValue>(params, workspace, stream);
  finish_dq(params, workspace, stream);
  finish_dnorm(params, workspace, stream);
  if (!finish_dlambda(params, workspace, stream)) reduce_dlambda(params, workspace, stream);
  // Mask values of -1e9 and below leave lse no digits for the row sum. If the flag is set, the
  // sm80 pass over rows prepares such rows for the repair.
  if (params.mask.kind == MaskKind::kAdditive) {
    prepare_rows(params, workspace, stream, workspace.units.needs_repair);
  }
  launch_repair<T, kD, kValue>(params, workspace, stream);
}

template <class T>
void backward_of(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d == 64 && dv == 64) return steps<T, 64, 64>(params, workspace, stream);
  if (d == 64) return steps<T, 64, 128>(params, workspace, stream);
  if (dv == 128) return steps<T, 128, 128>(params, workspace, stream);
  steps<T, 128, 256>(params, workspace, stream);
}

}  // namespace

bool takes_backward(const BackwardParams& params) {
  const bool packed = params.cu_seqlens_q != nullptr;
  const bool lengths_known = !packed || (params.total_q > 0 && params.total_k > 0);
  return lengths_known && has_shape(params) && has_aligned_tensors(params) &&
         usable_capability(params) >= kCapability && current_capability() == kCapability;
}

bool keeps_dout(const BackwardParams& params) {
  return params.mask.kind != MaskKind::kAdditive && !params.epilogue.norm &&
         params.epilogue.out_scale == 1.0 && params.o && params.o2 &&
         can_box(boxed(params, params.dout, true, params.value_dim));
}

int64_t unit_count(const BackwardParams& params) {
  return tile_number_count(params.cu_seqlens_q, params.batch, params.seq_q, params.total_q,
                           kUnitRows);
}

MaskBiases key_biases(const BackwardParams& params, void* memory) {
  return {params, /*by_keys=*/true, can_be_narrow(params), BackwardConfig<128>::kBlockN, kUnitRows,
          memory};
}

int64_t mask_bytes(const BackwardParams& params) {
  if (params.mask.kind == MaskKind::kNone) return 0;
  constexpr int kKeys = BackwardConfig<128>::kBlockN;
  return static_cast<int64_t>(params.mask.kind == MaskKind::kBoolean
                                  ? KeyWords(params, kKeys, nullptr).bytes(params)
                                  : key_biases(params, nullptr).bytes(params));
}

void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream) {
  check(cudaMemsetAsync(workspace.units.needs_repair, 0, sizeof(int), stream), "cudaMemsetAsync",
        params);
  if (params.dtype == Dtype::kBFloat16) {
    backward_of<bfloat16>(params, workspace, stream);
  } else {
    backward_of<float16>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda::sm90
