// SPDX-License-Identifier: Apache-2.0
//
// Decides which problems the Hopper forward takes, and picks the instance by type and widths.

#include "kernels/cuda/sm90/forward/launch.h"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm90/forward/workspace.h"

namespace diffattn::cuda::sm90 {
namespace {

bool takes_widths(int64_t d, int64_t dv) {
  return (d == 64 || d == 128) && (dv == d || dv == 2 * d);
}

/// True if the kernels can store the outputs: TMA must be able to address out, o and o2, and the
/// rests must allow 16-byte stores.
bool can_store(const ForwardParams& params) {
  const auto boxes = [&](const View<void>& view) {
    return !view || can_box(boxed_out(params, view));
  };
  const auto chunks = [&](const View<void>& view) {
    constexpr int64_t kBytes = 16;
    return reinterpret_cast<uintptr_t>(view.data) % kBytes == 0 &&
           view.batch_stride % kBytes == 0 && view.seq_stride % kBytes == 0 &&
           view.head_stride % kBytes == 0;
  };
  return boxes(params.out) && boxes(params.o) && boxes(params.o2) && chunks(params.o_rest) &&
         chunks(params.o2_rest);
}

bool can_load(const ForwardParams& params) {
  const bool packed = params.cu_seqlens_q != nullptr;
  const bool has_rows =
      packed ? params.total_q > 0 && params.total_k > 0 : params.seq_q > 0 && params.seq_k > 0;
  return has_rows && can_box(boxed_q(params, params.q1)) && can_box(boxed_q(params, params.q2)) &&
         can_box(boxed_k(params, params.k1)) && can_box(boxed_k(params, params.k2)) &&
         can_box(boxed_v(params));
}

template <class T>
void forward_of(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d == 64 && dv == 64) return launch_forward<T, 64, 64>(params, workspace, stream);
  if (d == 64) return launch_forward<T, 64, 128>(params, workspace, stream);
  if (dv == 128) return launch_forward<T, 128, 128>(params, workspace, stream);
  launch_forward<T, 128, 256>(params, workspace, stream);
}

template <class T>
void recompute_of(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d == 128) return launch_recompute<T, 128, 128>(params, workspace, stream);
  if (dv == 64) return launch_recompute<T, 64, 64>(params, workspace, stream);
  launch_recompute<T, 64, 128>(params, workspace, stream);
}

}  // namespace

bool takes_forward(const ForwardParams& params) {
  const bool half = params.dtype == Dtype::kBFloat16 || params.dtype == Dtype::kFloat16;
  const auto positive = [](double scale) { return static_cast<float>(scale * kLog2E) > 0.0f; };
  return half && takes_widths(params.head_dim, params.value_dim) &&
         (params.mask.kind == MaskKind::kNone || takes_mask(params, params.value_dim)) &&
         positive(params.scale) && positive(params.scale2) && can_load(params) && can_store(params);
}

bool takes_recompute(const ForwardParams& params) {
  return takes_forward(params) && params.mask.kind == MaskKind::kNone && params.value_dim <= 128 &&
         params.lse1 && params.lse2 && !params.o2 && !params.o2_rest;
}

size_t forward_workspace_bytes(const ForwardParams& params) {
  return ForwardWorkspace(params, nullptr).bytes;
}

void forward(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  if (params.dtype == Dtype::kBFloat16) {
    forward_of<bfloat16>(params, workspace, stream);
  } else {
    forward_of<float16>(params, workspace, stream);
  }
}

void recompute(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  if (params.dtype == Dtype::kBFloat16) {
    recompute_of<bfloat16>(params, workspace, stream);
  } else {
    recompute_of<float16>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda::sm90
