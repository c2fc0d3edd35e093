// SPDX-License-Identifier: Apache-2.0
//
// Split-key decode on the host: decides whether a problem takes it, lays out its workspace, and
// launches it with the smallest padded widths (kD, kDv) that hold the problem.

#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

Partials partials_of(const Problem& problem, const DecodePlan& plan, void* workspace) {
  const auto split_keys = static_cast<int>(plan.split_keys);
  Partials partials{.m = static_cast<float*>(workspace),
                    .l = nullptr,
                    .o = nullptr,
                    .split_keys = split_keys,
                    .splits = static_cast<int>((problem.seq_k + split_keys - 1) / split_keys),
                    .batch = static_cast<int>(problem.batch),
                    .seq_q = static_cast<int>(problem.seq_q),
                    .heads = static_cast<int>(problem.heads),
                    .pitch = static_cast<int>(Partials::pitch_of(problem.value_dim))};
  if (workspace == nullptr) return partials;
  partials.l = partials.m + partials.count();
  partials.o = partials.l + partials.count();
  return partials;
}

template <class T>
void decode_of(const ForwardParams& params, const DecodePlan& plan, const Partials& partials,
               cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d <= 64 && dv <= 64) {
    launch_decode<T, 64, 64>(params, plan, partials, stream);
  } else if (d <= 64 && dv <= 128) {
    launch_decode<T, 64, 128>(params, plan, partials, stream);
  } else if (dv <= 128) {
    launch_decode<T, 128, 128>(params, plan, partials, stream);
  } else {
    launch_decode<T, 128, 256>(params, plan, partials, stream);
  }
  if (!finishes_rows(params, partials)) combine<T>(params, plan, partials, stream);
}

}  // namespace

bool takes_decode(const Problem& problem) {
  return (problem.dtype == Dtype::kBFloat16 || problem.dtype == Dtype::kFloat16) &&
         problem.head_dim <= 128 && problem.value_dim <= 256 && problem.seq_q <= kDecodeRows &&
         problem.seq_k >= kDecodeKeys;
}

DecodePlan decode_plan(const Problem& problem) {
  return {.split_keys = decode_split_keys(problem.seq_k, problem.kv_heads)};
}

int64_t decode_workspace_bytes(const Problem& problem, const DecodePlan& plan) {
  const Partials partials = partials_of(problem, plan, nullptr);
  return finishes_rows(problem, partials) ? 0 : partials.count() * (2 + partials.pitch) * 4;
}

void decode(const ForwardParams& params, const DecodePlan& plan, void* workspace,
            cudaStream_t stream) {
  const Partials partials = partials_of(params, plan, workspace);
  if (params.dtype == Dtype::kFloat32) {
    launch_float32_decode(params, partials, stream);
    return combine<float>(params, plan, partials, stream);
  }
  const auto run = params.dtype == Dtype::kBFloat16 ? decode_of<bfloat16> : decode_of<float16>;
  run(params, plan, partials, stream);
}

}  // namespace diffattn::cuda::sm80
