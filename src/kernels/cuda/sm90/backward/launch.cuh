// SPDX-License-Identifier: Apache-2.0
//
// Host code of the backward: builds the arguments of its kernels and launches them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/sm90/backward/kernel.cuh"
#include "kernels/cuda/sm90/backward/launch.h"
#include "kernels/cuda/sm90/backward/repair.cuh"
#include "kernels/cuda/sm90/backward/rows.cuh"
#include "kernels/cuda/sm90/backward/wide/kernel.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace diffattn::cuda::sm90 {

template <class T, class U, int kValue>
void launch_rows_of(const BackwardParams& params, const View<const void>& o,
                    const View<const void>& o2, const BackwardWorkspace& workspace,
                    cudaStream_t stream) {
  const UnitArguments<T, U> args{
      .shape = shape_of(params),
      .units = tile_numbers(params.cu_seqlens_q, params.seq_q, kUnitRows),
      .unit_count = static_cast<int>(unit_count(params)),
      .q1 = rows_of<const T>(params.q1),
      .q2 = rows_of<const T>(params.q2),
      .dout = rows_of<const T>(params.dout),
      .o = rows_of<const U>(o),
      .o2 = rows_of<const U>(o2),
      .o_rest = rows_of<const int8_t>(params.o_rest),
      .o2_rest = rows_of<const int8_t>(params.o2_rest),
      .lse1 = rows_of<const float>(params.lse1),
      .lse2 = rows_of<const float>(params.lse2),
      .lambda = rows_of<const float>(params.lambda),
      .epilogue = epilogue_of(params.epilogue),
      .scale = static_cast<float>(params.scale),
      .scale2 = static_cast<float>(params.scale2),
      .keep_dout = keeps_dout(params),
      .d_o = rows_of<T>(workspace.d_o),
      .state = workspace.state,
      .stats = workspace.units.stats,
      .dq_sums = workspace.units.dq_sums,
      .dq_done = workspace.units.dq_done,
      .needs_repair = workspace.units.needs_repair,
      .dnorm_parts = workspace.dnorm_parts,
      .dlambda_parts = workspace.units.dlambda_parts};
  const auto blocks = static_cast<unsigned>(args.unit_count * params.heads);
  prepare_units_kernel<T, U, kValue><<<blocks, 256, 0, stream>>>(args);
  check_launch("sm90 backward over rows", params);
}

template <class T, int kD, int kValue>
void launch_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream) {
  if (params.o && params.o2) {
    return launch_rows_of<T, T, kValue>(params, params.o, params.o2, workspace, stream);
  }
  launch_rows_of<T, float, kValue>(params, as_input(workspace.o), as_input(workspace.o2), workspace,
                                   stream);
}

/// The config of the main kernel for a pair of widths.
template <int kD, int kValue>
using ConfigOf = std::conditional_t<kD == 128, WideBackwardConfig<kValue>, BackwardConfig<kValue>>;

/// Returns how many kv heads (of all batch entries) run together, so that their q, k, v, dO and dq
/// sums stay in the L2 cache. They may take 50 of its 60 MB.
template <int kD, int kValue>
int heads_in_cache(const BackwardParams& params) {
  constexpr int64_t kCacheBytes = int64_t{50} << 20;
  const int64_t group = params.heads / params.kv_heads;
  const bool packed = params.cu_seqlens_q != nullptr;
  const int64_t rows_q = packed ? params.total_q : params.seq_q;
  const int64_t rows_k = packed ? params.total_k : params.seq_k;
  const int64_t bytes =
      rows_q * group * (2 * kD * 2 + kValue * 2 + 2 * kD * 4) + rows_k * (2 * kD * 2 + kValue * 2);
  const int64_t all = params.kv_heads * (packed ? 1 : params.batch);
  return static_cast<int>(std::clamp<int64_t>(kCacheBytes / bytes, 1, all));
}

template <class T, int kD, int kValue>
BackwardArguments<T> backward_arguments(const BackwardParams& params,
                                        const BackwardWorkspace& workspace) {
  using Config = ConfigOf<kD, kValue>;
  const bool packed = params.cu_seqlens_q != nullptr;
  const auto map = [&](const View<const void>& view, bool query, int64_t width, int box_rows) {
    const int64_t rows =
        query ? (packed ? params.total_q : params.seq_q) : (packed ? params.total_k : params.seq_k);
    return tensor_map(
        params.dtype,
        {view, packed ? 1 : params.batch, rows, query ? params.heads : params.kv_heads, width},
        box_rows, static_cast<int>(width / 64));
  };
  return {.q1 = map(params.q1, true, kD, Config::kBlockM),
          .q2 = map(params.q2, true, kD, Config::kBlockM),
          .d_o = map(as_input(workspace.d_o), true, kValue, Config::kBlockM),
          .k1 = map(params.k1, false, kD, Config::kBlockN),
          .k2 = map(params.k2, false, kD, Config::kBlockN),
          .v = map(params.v, false, kValue, Config::kValueRows),
          .shape = shape_of(params),
          .tiles = tile_numbers(params.cu_seqlens_k, params.seq_k, Config::kBlockN),
          .units = tile_numbers(params.cu_seqlens_q, params.seq_q, kUnitRows),
          .tile_count = static_cast<int>(tile_number_count(
              params.cu_seqlens_k, params.batch, params.seq_k, params.total_k, Config::kBlockN)),
          .unit_count = static_cast<int>(unit_count(params)),
          .heads_in_cache = heads_in_cache<kD, kValue>(params),
          .stats = workspace.units.stats,
          .dq_sums = workspace.units.dq_sums,
          .dq_done = workspace.units.dq_done,
          .needs_repair = workspace.units.needs_repair,
          .words = KeyWords(params, Config::kBlockN, workspace.units.words),
          .biases = key_biases(params, workspace.units.words),
          .dk1 = rows_of<T>(params.dk1),
          .dk2 = rows_of<T>(params.dk2),
          .dv = rows_of<T>(params.dv),
          .scale = static_cast<float>(params.scale),
          .scale2 = static_cast<float>(params.scale2),
          .scale_log2 = static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = static_cast<float>(params.scale2 * kLog2E)};
}

template <class T, int kD, int kValue, bool kDeterministic, class B = void>
void launch_kernel(const BackwardParams& params, const BackwardArguments<T>& args,
                   cudaStream_t stream) {
  using Config = ConfigOf<kD, kValue>;
  constexpr const char* kName = "sm90 backward";
  void (*kernel)(BackwardArguments<T>);
  if constexpr (kD == 128) {
    kernel = backward_wide_kernel<T, Config, kDeterministic>;
  } else {
    kernel = backward_kernel<T, Config, kDeterministic, B>;
  }
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes),
      kName, params);
  const auto blocks = static_cast<unsigned>(args.tile_count * params.kv_heads * Config::kCluster);
  kernel<<<blocks, Config::kThreads, Config::kSmemBytes, stream>>>(args);
  check_launch(kName, params);
}

template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream) {
  const BackwardArguments<T> args = backward_arguments<T, kD, kValue>(params, workspace);
  if (args.words.data != nullptr) make_words(args.words, params, stream);
  const auto launch = [&]<class B>(const B*) {
    if (params.deterministic) {
      launch_kernel<T, kD, kValue, true, B>(params, args, stream);
    } else {
      launch_kernel<T, kD, kValue, false, B>(params, args, stream);
    }
  };
  if constexpr (kD == 64 && kValue == 128) {
    if (args.biases.data != nullptr) {
      make_biases(args.biases, params, stream);
      if (!args.biases.narrow) return launch(static_cast<const float*>(nullptr));
      return launch(static_cast<const T*>(nullptr));
    }
  }
  launch(static_cast<const void*>(nullptr));
}

template <class T, int kD, int kValue>
void launch_repair(const BackwardParams& params, const BackwardWorkspace& workspace,
                   cudaStream_t stream) {
  const sm80::BackwardArguments<T> args = sm80::backward_arguments<T>(params, workspace);
  const auto launch = [&]<class Config>(const char* name, auto kernel, Config, int64_t heads,
                                        int64_t rows, int64_t block_rows) {
    const int64_t tiles = (rows + block_rows - 1) / block_rows;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Config::kSmemBytes),
          name, params);
    kernel<<<kRepairBlocks, Config::kThreads, Config::kSmemBytes, stream>>>(
        args, workspace.units.needs_repair, params.batch * heads * tiles, static_cast<int>(tiles));
    check_launch(name, params);
  };
  const auto launch_keys = [&]<class Keys>(Keys config) {
    launch("sm90 backward, repair of keys", repair_keys_kernel<T, Keys>, config, params.kv_heads,
           params.seq_k, Keys::kBlockN);
  };
  if constexpr (kD == 64) {  // the same choice as in sm80::launch_backward
    launch_keys(sm80::KeysConfig<kD, kValue, sm80::kDvAndDk>{});
  } else {
    launch_keys(sm80::KeysConfig<kD, kValue, sm80::kDv>{});
    launch_keys(sm80::KeysConfig<kD, kValue, sm80::kDk>{});
  }
  using Queries = sm80::QueriesConfig<kD, kValue>;
  launch("sm90 backward, repair of queries", repair_queries_kernel<T, Queries>, Queries{},
         params.heads, params.seq_q, Queries::kBlockM);
}

}  // namespace diffattn::cuda::sm90
