// SPDX-License-Identifier: Apache-2.0
//
// Workspace of the statistics' backward: what stats_rows_kernel stores for stats_keys_kernel and
// for the sums of dlambda and dmask. Arrays are [H, rows], with one entry per (b, m, h).
#pragma once

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/stats/row.cuh"

namespace diffattn::cuda {

struct StatsWorkspace {
  size_t bytes = 0;
  Rows<RowGradient> rows;          // [B, M, H]
  Rows<float> minus_dlambda;       // [B, M, H]
  float* dlambda_parts = nullptr;  // partial sums, dlambda_part_bytes

  /// Lays the arrays out in `memory`. If it is null, only `bytes` is meaningful. Packed sequences
  /// with unknown total_q get the upper bound of B * M rows.
  StatsWorkspace(const StatsBackwardParams& params, void* memory) {
    constexpr size_t kAlignment = 256;
    const bool packed = params.cu_seqlens_q != nullptr;
    const int64_t count =
        packed && params.total_q > 0 ? params.total_q : params.batch * params.seq_q;
    const int64_t batch_stride = packed ? 0 : params.seq_q;
    const auto entries = static_cast<size_t>(count * params.heads);
    const size_t first = (entries * sizeof(RowGradient) + kAlignment - 1) / kAlignment * kAlignment;
    const size_t second = first + entries * sizeof(float);
    bytes = second + static_cast<size_t>(dlambda_part_bytes(params, params.dlambda));
    if (memory == nullptr) return;
    rows = {static_cast<RowGradient*>(memory), batch_stride, 1, count};
    minus_dlambda = {reinterpret_cast<float*>(static_cast<char*>(memory) + first), batch_stride, 1,
                     count};
    dlambda_parts = reinterpret_cast<float*>(static_cast<char*>(memory) + second);
  }
};

/// Computes dq and dk, and fills the workspace.
void stats_gradients(const StatsBackwardParams& params, const StatsWorkspace& workspace,
                     cudaStream_t stream);

/// Computes dmask from the workspace, if the caller wants it.
void reduce_stats_dmask(const StatsBackwardParams& params, const StatsWorkspace& workspace,
                        cudaStream_t stream);

}  // namespace diffattn::cuda
