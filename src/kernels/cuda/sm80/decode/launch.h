// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/sm80/decode/partials.cuh"

namespace diffattn::cuda::sm80 {

/// True for seq_q up to kDecodeRows and seq_k from kDecodeKeys, bfloat16 and float16, head_dim up
/// to 128 and value_dim up to 256.
bool takes_decode(const Problem& problem);

/// How `decode` divides the work.
struct DecodePlan {
  int64_t split_keys = 0;  // keys of one split
  /// True if all keys and values but those of the newest seq_q tokens were written before the
  /// kernel that precedes this one in the stream was launched, and key_lengths with them. Their
  /// loads then overlap with that kernel.
  bool old_keys_ready = false;
  /// True if there are no more blocks than SMs, and a block may take most of an SM's memory.
  bool alone = false;
};

/// Returns the plan of a call that knows nothing about its keys, and whose result must not depend
/// on the batch size.
DecodePlan decode_plan(const Problem& problem);

/// Returns the bytes of device memory that `decode` needs.
int64_t decode_workspace_bytes(const Problem& problem, const DecodePlan& plan);

/// Computes the forward by split-key decode: `launch_decode`, then `combine`. With one split,
/// decode_kernel may finish the rows itself, and then it stores only `out`. Also for float32, as
/// far as `launch_float32_decode` goes.
void decode(const ForwardParams& params, const DecodePlan& plan, void* workspace,
            cudaStream_t stream);

/// True if a block computes two fragments of 8 packed rows.
inline bool has_two_fragments(const Problem& problem) {
  return problem.head_dim <= 64 && problem.seq_q * (problem.heads / problem.kv_heads) > 8;
}

/// True if decode_kernel finishes its rows, and combine has nothing to do.
inline bool finishes_rows(const Problem& problem, const Partials& partials) {
  return problem.dtype != Dtype::kFloat32 && partials.splits == 1 && !has_two_fragments(problem);
}

/// Launches decode_kernel for one element type and one pair of padded widths. CMake generates one
/// source file per pair.
template <class T, int kD, int kDv>
void launch_decode(const ForwardParams& params, const DecodePlan& plan, const Partials& partials,
                   cudaStream_t stream);

/// Launches the kernel for float32: seq_q 1, no mask, head_dim up to 128 and value_dim up to 256.
void launch_float32_decode(const ForwardParams& params, const Partials& partials,
                           cudaStream_t stream);

/// Merges the splits of each row and stores the results, see combine.cu.
template <class T>
void combine(const ForwardParams& params, const DecodePlan& plan, const Partials& partials,
             cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
