// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/sm80/forward/kernel.cuh"
#include "kernels/cuda/sm80/forward/launch.h"
#include "kernels/cuda/sm80/forward/pair.cuh"

namespace diffattn::cuda::sm80 {

template <class T, int kDv>
ForwardArguments<T> forward_arguments(const ForwardParams& params, const ExactOutputs& exact) {
  const auto same = [](const View<const void>& x, const View<const void>& y) {
    return x.data == y.data && x.batch_stride == y.batch_stride && x.seq_stride == y.seq_stride &&
           x.head_stride == y.head_stride;
  };
  const auto aligned = [](const View<const void>& view, int64_t width) {
    return has_aligned_rows(view, width);
  };
  // True if columns c and c + 1, c even, can be stored at once: 4 bytes of T or 2 bytes of int8.
  const auto words = [](const View<void>& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 4 == 0 && view.batch_stride % 2 == 0 &&
           view.seq_stride % 2 == 0 && view.head_stride % 2 == 0;
  };
  return {.shape = shape_of(params),
          .q1 = rows_of<const T>(params.q1),
          .q2 = rows_of<const T>(params.q2),
          .k1 = rows_of<const T>(params.k1),
          .k2 = rows_of<const T>(params.k2),
          .v = rows_of<const T>(params.v),
          .lambda = rows_of<const float>(params.lambda),
          .scale_log2 = static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
          .q_aligned = aligned(params.q1, params.head_dim) && aligned(params.q2, params.head_dim),
          .k_aligned = aligned(params.k1, params.head_dim) && aligned(params.k2, params.head_dim),
          .v_aligned = aligned(params.v, params.value_dim),
          .paired_stores = params.value_dim == kDv && words(params.out) && words(params.o) &&
                           words(params.o2) && words(params.o_rest) && words(params.o2_rest) &&
                           !exact.o && !exact.o2,
          .shared_k = same(params.k1, params.k2),
          .epilogue = epilogue_of(params.epilogue),
          .out = rows_of<T>(params.out),
          .o = rows_of<T>(params.o),
          .o2 = rows_of<T>(params.o2),
          .o_rest = rows_of<int8_t>(params.o_rest),
          .o2_rest = rows_of<int8_t>(params.o2_rest),
          .lse1 = rows_of<float>(params.lse1),
          .lse2 = rows_of<float>(params.lse2),
          .o_exact = rows_of<float>(exact.o),
          .o2_exact = rows_of<float>(exact.o2)};
}

/// Launches one block per row tile of each head. `more` holds the kernel's remaining arguments.
template <class Config, class Kernel, class Arguments, class... More>
void launch_row_tiles(Kernel kernel, const ForwardParams& params, const Arguments& args,
                      int smem_bytes, cudaStream_t stream, More... more) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes),
        "sm80 forward: shared memory", params);
  const int64_t tiles = (params.seq_q + Config::kBlockM - 1) / Config::kBlockM;
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * tiles);
  kernel<<<blocks, Config::kThreads, smem_bytes, stream>>>(args, static_cast<int>(tiles), more...);
  check_launch("sm80 forward", params);
}

template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  const ForwardArguments<T> args = forward_arguments<T, kDv>(params, exact);
  using Pair = PairConfig<kD, kDv>;
  if constexpr (Pair::kFits) {
    const bool masked = params.mask.kind != MaskKind::kNone;
    // If all tiles take equally long, computing one head after another uses the L2 cache best.
    // Otherwise k1, k2 and v of one group of heads may take 9 MiB of it.
    const bool uneven = params.bounds() != Window{};
    const int group =
        uneven ? heads_in_cache(params.seq_k, 2 * (2 * kD + kDv), int64_t{9} << 20) : 1;
    launch_row_tiles<Pair>(pair_forward_kernel<T, Pair>, params, args,
                           masked ? Pair::kMaskedSmemBytes : Pair::kSmemBytes, stream, group);
  } else {
    using Config = ForwardConfig<kD, kDv>;
    launch_row_tiles<Config>(forward_kernel<T, Config>, params, args, Config::kSmemBytes, stream);
  }
}

}  // namespace diffattn::cuda::sm80
