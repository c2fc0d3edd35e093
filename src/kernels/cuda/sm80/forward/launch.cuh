// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/sm80/forward/kernel.cuh"
#include "kernels/cuda/sm80/forward/launch.h"
#include "kernels/cuda/sm80/forward/pair.cuh"

namespace diffattn::cuda::sm80 {

template <class T>
ForwardArguments<T> forward_arguments(const ForwardParams& params, const ExactOutputs& exact) {
  const auto same = [](const View<const void>& x, const View<const void>& y) {
    return x.data == y.data && x.batch_stride == y.batch_stride && x.seq_stride == y.seq_stride &&
           x.head_stride == y.head_stride;
  };
  const auto aligned = [](const View<const void>& view, int64_t width) {
    return has_aligned_rows(view, width);
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

/// One block per tile of rows of each head.
template <class Config, class T>
void launch_row_tiles(void (*kernel)(ForwardArguments<T>, int), const ForwardParams& params,
                      const ExactOutputs& exact, cudaStream_t stream) {
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes),
      "sm80 forward: shared memory", params);
  const int64_t tiles = (params.seq_q + Config::kBlockM - 1) / Config::kBlockM;
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * tiles);
  kernel<<<blocks, Config::kThreads, Config::kSmemBytes, stream>>>(
      forward_arguments<T>(params, exact), static_cast<int>(tiles));
  check_launch("sm80 forward", params);
}

template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  using Pair = PairConfig<kD, kDv>;
  if constexpr (Pair::kFits) {
    launch_row_tiles<Pair>(pair_forward_kernel<T, Pair>, params, exact, stream);
  } else {
    using Config = ForwardConfig<kD, kDv>;
    launch_row_tiles<Config>(forward_kernel<T, Config>, params, exact, stream);
  }
}

}  // namespace diffattn::cuda::sm80
