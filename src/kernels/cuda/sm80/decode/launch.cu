// SPDX-License-Identifier: Apache-2.0
//
// Split-key decode on the host: decides whether a problem takes it, lays out its workspace, and
// launches it with the smallest padded widths (kD, kDv) that hold the problem.

#include "kernels/cuda/sm80/decode/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

Partials partials_of(const Problem& problem, void* workspace) {
  const int split_keys = decode_split_keys(problem.seq_k, problem.kv_heads);
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
void decode_of(const ForwardParams& params, const Partials& partials, cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d <= 64 && dv <= 64) {
    launch_decode<T, 64, 64>(params, partials, stream);
  } else if (d <= 64 && dv <= 128) {
    launch_decode<T, 64, 128>(params, partials, stream);
  } else if (dv <= 128) {
    launch_decode<T, 128, 128>(params, partials, stream);
  } else {
    launch_decode<T, 128, 256>(params, partials, stream);
  }
  combine<T>(params, partials, stream);
}

}  // namespace

bool takes_decode(const Problem& problem) {
  return (problem.dtype == Dtype::kBFloat16 || problem.dtype == Dtype::kFloat16) &&
         problem.head_dim <= 128 && problem.value_dim <= 256 && problem.seq_q <= kDecodeRows &&
         problem.seq_k >= kDecodeKeys;
}

int64_t decode_workspace_bytes(const Problem& problem) {
  const Partials partials = partials_of(problem, nullptr);
  return partials.count() * (2 + partials.pitch) * 4;
}

void decode(const ForwardParams& params, void* workspace, cudaStream_t stream) {
  const Partials partials = partials_of(params, workspace);
  if (params.dtype == Dtype::kBFloat16) {
    decode_of<bfloat16>(params, partials, stream);
  } else {
    decode_of<float16>(params, partials, stream);
  }
}

}  // namespace diffattn::cuda::sm80
