// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_limits.h"
#include "kernels/cuda/sm80/backward/fused.cuh"
#include "kernels/cuda/sm80/backward/keys.cuh"
#include "kernels/cuda/sm80/backward/launch.h"
#include "kernels/cuda/sm80/backward/plain.cuh"
#include "kernels/cuda/sm80/backward/queries.cuh"

namespace diffattn::cuda::sm80 {

template <class T>
BackwardArguments<T> backward_arguments(const BackwardParams& params,
                                        const BackwardWorkspace& workspace) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  return {.shape = shape_of(params),
          .q1 = rows_of<const T>(params.q1),
          .q2 = rows_of<const T>(params.q2),
          .k1 = rows_of<const T>(params.k1),
          .k2 = rows_of<const T>(params.k2),
          .v = rows_of<const T>(params.v),
          .d_o = rows_of<const T>(workspace.d_o),
          .state = workspace.state,
          .scale = static_cast<float>(params.scale),
          .scale2 = static_cast<float>(params.scale2),
          .scale_log2 = static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
          .q_aligned = has_aligned_rows(params.q1, d) && has_aligned_rows(params.q2, d),
          .k_aligned = has_aligned_rows(params.k1, d) && has_aligned_rows(params.k2, d),
          .v_aligned = has_aligned_rows(params.v, dv),
          .d_o_aligned = has_aligned_rows(workspace.d_o, dv),
          .dq1 = rows_of<T>(params.dq1),
          .dq2 = rows_of<T>(params.dq2),
          .dk1 = rows_of<T>(params.dk1),
          .dk2 = rows_of<T>(params.dk2),
          .dv = rows_of<T>(params.dv)};
}

/// Launches one block per tile of `block_rows` of the `rows` rows of each head.
template <class T, class Config>
void launch_tiles(void (*kernel)(BackwardArguments<T>, int), const char* name,
                  const BackwardArguments<T>& args, int64_t heads, int64_t rows, int64_t block_rows,
                  const BackwardParams& params, cudaStream_t stream) {
  const int64_t tiles = (rows + block_rows - 1) / block_rows;
  const auto blocks = static_cast<unsigned>(params.batch * heads * tiles);
  if (blocks == 0) return;
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes),
      name, params);
  kernel<<<blocks, Config::kThreads, Config::kSmemBytes, stream>>>(args, static_cast<int>(tiles));
  check_launch(name, params);
}

template <class T, int kD, int kValue, int kOutputs>
void launch_keys(const BackwardParams& params, const BackwardArguments<T>& args,
                 cudaStream_t stream) {
  using Config = KeysConfig<kD, kValue, kOutputs>;
  launch_tiles<T, Config>(backward_keys_kernel<T, Config>, "sm80 backward over keys", args,
                          params.kv_heads, params.seq_k, Config::kBlockN, params, stream);
}

/// Launches the fused pass with one block per key tile, but at most `most_blocks` blocks.
template <class Config, class Kernel, class T>
void launch_key_tiles(Kernel kernel, int64_t most_blocks, const BackwardParams& params,
                      const BackwardArguments<T>& args, const DqSums& sums, cudaStream_t stream) {
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes),
      "sm80 backward: shared memory", params);
  const int64_t tiles = (params.seq_k + Config::kBlockN - 1) / Config::kBlockN;
  const int64_t heads = params.batch * params.kv_heads, items = heads * tiles;
  if (items == 0) return;
  const int64_t row_bytes = 2 * (2 * Config::kHeadDim + Config::kValueDim);  // q1, q2, dO
  const int64_t rows = params.seq_q * (params.heads / params.kv_heads);
  const int group = even_group(heads, heads_in_cache(rows, row_bytes, int64_t{32} << 20));
  const auto blocks = static_cast<unsigned>(std::min(items, most_blocks));
  kernel<<<blocks, Config::kThreads, Config::kSmemBytes, stream>>>(args, sums,
                                                                   static_cast<int>(tiles), group);
  check_launch("sm80 backward", params);
}

template <class T, class Config>
void launch_fused_tiles(const BackwardParams& params, const BackwardArguments<T>& args,
                        const DqSums& sums, cudaStream_t stream) {
  launch_key_tiles<Config>(backward_fused_kernel<T, Config>, INT64_MAX, params, args, sums, stream);
}

/// True if plain.cuh supports the problem: no mask tensor, aligned rows of exactly the tile's
/// width, and enough shared memory.
template <class Config>
bool is_plain(const BackwardParams& params, bool aligned) {
  const bool stores_aligned = has_aligned_rows(params.dk1, Config::kHeadDim) &&
                              has_aligned_rows(params.dk2, Config::kHeadDim) &&
                              has_aligned_rows(params.dv, Config::kValueDim);
  return aligned && stores_aligned && params.mask.kind == MaskKind::kNone &&
         params.head_dim == Config::kHeadDim && params.value_dim == Config::kValueDim &&
         max_smem_bytes(params) >= Config::kSmemBytes;
}

/// Launches persistent blocks, one per SM, which take key tiles from a counter.
template <class T, class Config>
void launch_plain_tiles(const BackwardParams& params, const BackwardArguments<T>& args,
                        const DqSums& sums, cudaStream_t stream) {
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "current device", params);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "multiprocessors of the device", params);
  launch_key_tiles<Config>(backward_plain_kernel<T, Config>, processors, params, args, sums,
                           stream);
}

template <class T, int kD, int kValue>
void launch_fused(const BackwardParams& params, const BackwardWorkspace& workspace,
                  const BackwardArguments<T>& args, cudaStream_t stream) {
  const DqSums sums{workspace.dq_sums + kDqCounterBytes / 4, static_cast<int>(dq_units(params)),
                    reinterpret_cast<int*>(workspace.dq_sums)};
  using Large = FusedConfig<kD, kValue, 128, 2>;
  using Small = FusedConfig<kD, kValue, 64, 1>;
  static_assert(Small::kSmemBytes <= kMaxSmemBytes);
  if constexpr (kD == 64 && kValue == 128) {
    using Plain = PlainConfig<kD>;
    const bool aligned = args.q_aligned && args.k_aligned && args.v_aligned && args.d_o_aligned;
    if (is_plain<Plain>(params, aligned)) {
      launch_plain_tiles<T, Plain>(params, args, sums, stream);
    } else {
      launch_fused_tiles<T, Small>(params, args, sums, stream);
    }
  } else if (max_smem_bytes(params) >= Large::kSmemBytes) {
    launch_fused_tiles<T, Large>(params, args, sums, stream);
  } else {
    launch_fused_tiles<T, Small>(params, args, sums, stream);
  }
  constexpr int kThreads = 256;
  const int64_t tiles = (params.seq_q + DqSums::kRows - 1) / DqSums::kRows;
  const int64_t threads = params.batch * params.heads * tiles * 2 * kWarpSize;
  finish_dq_kernel<T, kD, kValue>
      <<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
          args, sums, static_cast<int>(tiles));
  check_launch("sm80 backward: dq", params);
}

template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream) {
  const BackwardArguments<T> args = backward_arguments<T>(params, workspace);
  const bool want_dk = params.dk1 || params.dk2, want_dv = static_cast<bool>(params.dv);
  if constexpr (kFusedFits<kD, kValue>) {
    if (is_fused(params)) return launch_fused<T, kD, kValue>(params, workspace, args, stream);
  }
  if constexpr (kFusedFits<kD, kValue>) {
    if (want_dk || want_dv) launch_keys<T, kD, kValue, kDvAndDk>(params, args, stream);
  } else {
    if (want_dv) launch_keys<T, kD, kValue, kDv>(params, args, stream);
    if (want_dk) launch_keys<T, kD, kValue, kDk>(params, args, stream);
  }
  if (params.dq1 || params.dq2) {
    using Config = QueriesConfig<kD, kValue>;
    launch_tiles<T, Config>(backward_queries_kernel<T, Config>, "sm80 backward over queries", args,
                            params.heads, params.seq_q, Config::kBlockM, params, stream);
  }
}

}  // namespace diffattn::cuda::sm80
