// SPDX-License-Identifier: Apache-2.0
//
// The attention of a generation step: split-key decode on a paged cache.

#include <algorithm>

#include "kernels/cuda/sm80/decode/launch.h"
#include "kernels/cuda/token/launch.cuh"
#include "kernels/token_step.h"

namespace diffattn::cuda::token {
namespace {

/// Returns enough splits to occupy the GPU, of at least 256 keys. A few blocks get one SM each;
/// otherwise two blocks of two heads may share one.
sm80::DecodePlan plan_of(const Problem& problem) {
  constexpr int64_t kLeastKeys = 256, kStep = 16, kAloneBytes = 198 * 1024;
  const int64_t heads = std::max<int64_t>(1, problem.batch * problem.kv_heads), sms = sm_count();
  const int64_t most_splits = 4 * heads <= sms ? sms / heads : (sms + heads - 1) / heads;
  const int64_t keys = (problem.seq_k + most_splits - 1) / most_splits;
  const int64_t split_keys = std::max(kLeastKeys, (keys + kStep - 1) / kStep * kStep);
  const int64_t splits = (problem.seq_k + split_keys - 1) / split_keys;
  return {.split_keys = split_keys,
          .old_keys_ready = true,
          .alone = heads * splits <= sms && block_smem_bytes() >= kAloneBytes};
}

}  // namespace

bool takes_attend(Dtype dtype, int64_t head_dim, int64_t value_dim) {
  return dtype != Dtype::kFloat64 && head_dim <= 128 && value_dim <= 256;
}

size_t attend_workspace_bytes(const ForwardParams& params) {
  return static_cast<size_t>(sm80::decode_workspace_bytes(params, plan_of(params)));
}

void attend(const ForwardParams& params, void* workspace, Stream stream) {
  sm80::decode(params, plan_of(params), workspace, static_cast<cudaStream_t>(stream));
}

}  // namespace diffattn::cuda::token
