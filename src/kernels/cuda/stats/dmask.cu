// SPDX-License-Identifier: Apache-2.0
//
// dmask of the statistics' backward. dmask.cuh sums ds1 + ds2 over the scores that share an entry.

#include "kernels/cuda/backward/dmask.cuh"
#include "kernels/cuda/stats/workspace.cuh"

namespace diffattn::cuda {
namespace {

/// Returns ds1 + ds2 of one score (b, h, m, n), or 0 if row m may not see column n.
template <class T>
struct StatsScoreGradient {
  simt::MapInputs<T> in;
  Rows<RowGradient> rows;  // [B, M, H]

  __device__ float operator()(int b, int h, int m, int n) const {
    const Sequence seq = in.shape.sequence(b);
    const float bias = HeadMask(in.shape, seq, b, h).bias(m, n);
    if (bias == -INFINITY) return 0.0f;
    const int64_t row = seq.q_begin + m, column = seq.k_begin + n;
    const int g = in.shape.kv_head(h), width = in.shape.head_dim;
    const float s1 = dot(in.q1.at(b, row, h), in.k1.at(b, column, g), width);
    const float s2 = dot(in.q2.at(b, row, h), in.k2.at(b, column, g), width);
    const ScoreGradient ds = score_gradient(*rows.at(b, row, h), n, fmaf(s1, in.scale_log2, bias),
                                            fmaf(s2, in.scale2_log2, bias));
    return ds.ds1 + ds.ds2;
  }
};

template <class T>
void reduce(const StatsBackwardParams& params, const StatsWorkspace& workspace,
            cudaStream_t stream) {
  launch_dmask(params, params, StatsScoreGradient<T>{simt::map_inputs<T>(params), workspace.rows},
               stream);
}

}  // namespace

void reduce_stats_dmask(const StatsBackwardParams& params, const StatsWorkspace& workspace,
                        cudaStream_t stream) {
  if (params.dmask == nullptr) return;
  switch (params.dtype) {
    case Dtype::kBFloat16: return reduce<bfloat16>(params, workspace, stream);
    case Dtype::kFloat16: return reduce<float16>(params, workspace, stream);
    default: return reduce<float>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda
