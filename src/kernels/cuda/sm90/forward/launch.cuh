// SPDX-License-Identifier: Apache-2.0
//
// Host code of the forward: builds the kernel arguments, picks the kernel and launches it.
#pragma once

#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/programmatic_launch.cuh"
#include "kernels/cuda/sm90/forward/kernel.cuh"
#include "kernels/cuda/sm90/forward/launch.h"
#include "kernels/cuda/sm90/forward/recompute.cuh"
#include "kernels/cuda/sm90/forward/repair.cuh"
#include "kernels/cuda/sm90/forward/wide/kernel.cuh"
#include "kernels/cuda/sm90/forward/workspace.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace diffattn::cuda::sm90 {

inline bool has_words(const Problem& problem) { return problem.mask.kind == MaskKind::kBoolean; }
inline bool has_biases(const Problem& problem) { return problem.mask.kind == MaskKind::kAdditive; }

/// True if the outputs are out and lse only, without head norm.
inline bool wants_plain(const ForwardParams& params) {
  return !params.epilogue.norm && !params.o && !params.o2 && !params.o_rest && !params.o2_rest;
}

template <class T, class Config>
ForwardArguments<T> forward_arguments(const ForwardParams& params, const ForwardWorkspace& work) {
  const auto map = [&](const BoxedTensor& tensor, int rows) {
    // A box has at most two column blocks of 64: at Dv = 256 each block of a cluster loads and
    // stores half of the columns.
    const int blocks = static_cast<int>(std::min<int64_t>(2, tensor.width / 64));
    return tensor_map(params.dtype, tensor, rows, blocks);
  };
  const bool packed = params.cu_seqlens_q != nullptr, biased = has_biases(params);
  // Biases are natural or in base 2.
  const double factor_before_bias = has_narrow_biases(params) ? 1.0 : kLog2E;
  const auto factor_after_bias = static_cast<float>(kLog2E / factor_before_bias);
  const int64_t heads = packed ? params.heads : params.batch * params.heads;
  return {.q1 = map(boxed_q(params, params.q1), kConsumerRows),
          .q2 = map(boxed_q(params, params.q2), kConsumerRows),
          .k1 = map(boxed_k(params, params.k1), Config::kBlockN),
          .k2 = map(boxed_k(params, params.k2), Config::kBlockN),
          .v = map(boxed_v(params), Config::kBlockN),
          .out_map = map(boxed_out(params, params.out), 16),
          .o_map = map(boxed_out(params, params.o ? params.o : params.out), 16),
          .o2_map = map(boxed_out(params, params.o2 ? params.o2 : params.out), 16),
          .shape = shape_of(params),
          .scale_log2 = biased ? factor_after_bias : static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = biased ? factor_after_bias : static_cast<float>(params.scale2 * kLog2E),
          .scale = static_cast<float>(params.scale * factor_before_bias),
          .scale2 = static_cast<float>(params.scale2 * factor_before_bias),
          .shared_k = shares_k(params),
          .packed = packed,
          .plain = wants_plain(params),
          .blocks = static_cast<int>(tile_index_count(params, kItemRows)),
          .heads = static_cast<int>(heads),
          .heads_in_cache = heads_in_cache(params, heads),
          .state = work.state,
          .words = work.words,
          .biases = work.biases,
          .lambda = rows_of<const float>(params.lambda),
          .epilogue = epilogue_of(params.epilogue),
          .out = rows_of<T>(params.out),
          .o = rows_of<T>(params.o),
          .o2 = rows_of<T>(params.o2),
          .o_rest = rows_of<int8_t>(params.o_rest),
          .o2_rest = rows_of<int8_t>(params.o2_rest),
          .lse1 = rows_of<float>(params.lse1),
          .lse2 = rows_of<float>(params.lse2)};
}

/// The config and the kernel for widths kD, kDv.
template <class T, int kD, int kDv>
struct ForwardChoice {
  using Config = ForwardConfig<kD, kDv>;
  static auto kernel(bool lower, bool words, bool plain) {
    if constexpr (kD == 64 && kDv == 128) {
      if (words) return forward_kernel<T, Config, false, TileWords>;
      if (plain && !lower) return forward_kernel<T, Config, false, NoMaskTile, true>;
    }
    return lower ? forward_kernel<T, Config, true> : forward_kernel<T, Config, false>;
  }
};
template <class T>
struct ForwardChoice<T, 128, 256> {
  using Config = WideConfig;
  static auto kernel(bool lower, bool /*words*/, bool /*plain*/) {
    return lower ? wide_forward_kernel<T, true> : wide_forward_kernel<T, false>;
  }
};

/// Launches the mask conversion if any, clear_kernel, `kernel` and the repair kernel. The repair
/// kernel writes the outputs of `repaired`.
template <class T, int kD, int kDv, class Config>
void launch_items(void (*kernel)(ForwardArguments<T>), const ForwardParams& params,
                  const ForwardParams& repaired, void* workspace, cudaStream_t stream) {
  using RepairConfig = sm80::ForwardConfig<kD, kDv>;
  const ForwardWorkspace work(params, workspace);
  if (has_words(params)) make_words(work.words, Config::kBlockN, params, stream);
  if (has_biases(params)) make_biases(work.biases, params, stream);
  clear(work, params, stream);
  const ForwardArguments<T> args = forward_arguments<T, Config>(params, work);
  const int processors = processor_count(params);
  const auto items = static_cast<int64_t>(args.blocks) * args.heads;
  const int64_t clusters = std::min<int64_t>(processors / Config::kCluster, items);
  launch_programmatic(kernel, static_cast<unsigned>(Config::kCluster * clusters), Config::kThreads,
                      Config::kSmemBytes, stream, params, "sm90 forward", args);
  launch_programmatic(repair_kernel<T, RepairConfig>, static_cast<unsigned>(processors),
                      RepairConfig::kThreads, RepairConfig::kSmemBytes, stream, params,
                      "sm90 forward repair", sm80::forward_arguments<T, kDv>(repaired, {}),
                      work.state, work.marks);
}

/// True if columns at the start may be hidden from some rows (kLower).
inline bool has_lower_limit(const Problem& problem) {
  return problem.window.left != kNoBound || problem.key_starts != nullptr;
}

/// Launches the forward with an additive mask.
template <class T>
void launch_biased(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  const auto launch = [&]<class B, int kKeys>(TileBiases<B, kKeys>) {
    using Config = ForwardConfig<64, 128, kKeys>;
    launch_items<T, 64, 128, Config>(forward_kernel<T, Config, false, TileBiases<B, kKeys>>, params,
                                     params, workspace, stream);
  };
  if (has_narrow_biases(params)) return launch(TileBiases<T, kNarrowBiasKeys>{});
  launch(TileBiases<float, kWideBiasKeys>{});
}

template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  using Choice = ForwardChoice<T, kD, kDv>;
  if constexpr (kD == 64 && kDv == 128) {
    if (has_biases(params)) return launch_biased<T>(params, workspace, stream);
  }
  launch_items<T, kD, kDv, typename Choice::Config>(
      Choice::kernel(has_lower_limit(params), has_words(params), wants_plain(params)), params,
      params, workspace, stream);
}

template <class T, int kD, int kDv>
void launch_recompute(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  // Registers hold the scores of both maps at once; tiles of 128 keys would spill a few bytes.
  using Config = ForwardConfig<kD, kDv, std::min(kForwardKeys<kD, kDv>, 96)>;
  ForwardParams repaired = params;
  repaired.lse1 = repaired.lse2 = repaired.o2 = repaired.o2_rest = {};
  launch_items<T, kD, kDv, Config>(has_lower_limit(params) ? recompute_kernel<T, Config, true>
                                                           : recompute_kernel<T, Config, false>,
                                   params, repaired, workspace, stream);
}

}  // namespace diffattn::cuda::sm90
