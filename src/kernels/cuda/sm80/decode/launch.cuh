// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/programmatic_launch.cuh"
#include "kernels/cuda/sm80/decode/kernel.cuh"
#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {

template <class T, class Config>
void launch_decode_rows(const ForwardParams& params, const DecodeArguments<T>& args,
                        cudaStream_t stream) {
  const int64_t rows = params.seq_q * (params.heads / params.kv_heads);
  const int64_t row_tiles = (rows + Config::kRows - 1) / Config::kRows;
  const int splits = args.partials.splits;
  const auto blocks = static_cast<unsigned>(params.batch * params.kv_heads * splits * row_tiles);
  // A large shared memory leaves room for a combine_kernel block beside two decode blocks.
  check(
      cudaFuncSetAttribute(decode_kernel<T, Config>, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared),
      "sm80 decode", params);
  launch_programmatic_if_supported(decode_kernel<T, Config>, blocks, Config::kThreads,
                                   Config::kSmemBytes, stream, params, "sm80 decode", args,
                                   static_cast<int>(row_tiles), splits);
}

/// True if every row sees all keys from its first visible one to its last key.
inline bool is_plain(const Problem& problem) {
  return problem.seq_q == 1 && problem.mask.kind == MaskKind::kNone &&
         problem.cu_seqlens_q == nullptr;
}

template <class T, int kD, int kDv>
void launch_decode(const ForwardParams& params, const DecodePlan& plan, const Partials& partials,
                   cudaStream_t stream) {
  const int64_t d = params.head_dim;
  const DecodeArguments<T> args{
      .shape = shape_of(params),
      .q1 = rows_of<const T>(params.q1),
      .q2 = rows_of<const T>(params.q2),
      .k1 = rows_of<const T>(params.k1),
      .k2 = rows_of<const T>(params.k2),
      .v = rows_of<const T>(params.v),
      .scale_log2 = static_cast<float>(params.scale * kLog2E),
      .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
      .k_aligned = has_aligned_rows(params.k1, d) && has_aligned_rows(params.k2, d),
      .v_aligned = has_aligned_rows(params.v, params.value_dim),
      .whole = has_aligned_rows(params.k1, d) && has_aligned_rows(params.k2, d) &&
               has_aligned_rows(params.v, params.value_dim) && d == kD && params.value_dim == kDv,
      .q_whole = has_aligned_rows(params.q1, d) && has_aligned_rows(params.q2, d) && d == kD,
      .pages = params.pages,
      .old_keys_ready = plan.old_keys_ready,
      .one_split = finishes_rows(params, partials),
      .lambda = rows_of<const float>(params.lambda),
      .epilogue = epilogue_of(params.epilogue),
      .out = rows_of<T>(params.out),
      .partials = partials};
  // With wider heads a second fragment of o does not fit the registers.
  if constexpr (kD <= 64) {
    if (has_two_fragments(params)) {
      return launch_decode_rows<T, DecodeConfig<kD, kDv, 2>>(params, args, stream);
    }
  }
  if (args.whole && args.q_whole && is_plain(params)) {
    if (plan.alone) {
      return launch_decode_rows<T, DecodeConfig<kD, kDv, 1, DecodeKind::kPlainAlone>>(params, args,
                                                                                      stream);
    }
    return launch_decode_rows<T, DecodeConfig<kD, kDv, 1, DecodeKind::kPlain>>(params, args,
                                                                               stream);
  }
  launch_decode_rows<T, DecodeConfig<kD, kDv, 1>>(params, args, stream);
}

}  // namespace diffattn::cuda::sm80
