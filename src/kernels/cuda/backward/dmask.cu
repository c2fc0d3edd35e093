// SPDX-License-Identifier: Apache-2.0
//
// dmask of the attention backward. dmask.cuh sums ds1 + ds2 over the scores that share an entry:
//
//   p = exp2(scale log2(e) q.k + mask - lse),  dp = dO.v
//   ds1 = p1 (dp - delta1),  ds2 = -lambda p2 (dp - delta2)

#include "kernels/cuda/backward/dmask.cuh"

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"

namespace diffattn::cuda {
namespace {

/// Returns ds1 + ds2 of one score (b, h, m, n), or 0 if row m may not see column n.
template <class T>
struct AttentionScoreGradient {
  Shape shape;
  Rows<const T> q1, q2, k1, k2, v, d_o;
  RowState state;
  Rows<float> ds_factors;  // or null, see RowFactors::ds
  float scale_log2, scale2_log2;

  __device__ float operator()(int b, int h, int m, int n) const {
    const Sequence seq = shape.sequence(b);
    const float bias = HeadMask(shape, seq, b, h).bias(m, n);
    if (bias == -INFINITY) return 0.0f;
    const int64_t row = seq.q_begin + m, column = seq.k_begin + n;
    const int g = shape.kv_head(h);
    const float s1 = dot(q1.at(b, row, h), k1.at(b, column, g), shape.head_dim);
    const float s2 = dot(q2.at(b, row, h), k2.at(b, column, g), shape.head_dim);
    const float dp = dot(d_o.at(b, row, h), v.at(b, column, g), shape.value_dim);
    const float p1 = ptx::probability(s1 * scale_log2 + bias - *state.lse1.at(b, row, h));
    const float p2 = ptx::probability(s2 * scale2_log2 + bias - *state.lse2.at(b, row, h));
    const float ds = p1 * (dp - *state.delta1.at(b, row, h)) -
                     *state.lambda.at(b, row, h) * p2 * (dp - *state.delta2.at(b, row, h));
    return ds_factors.data == nullptr ? ds : ds * *ds_factors.at(b, row, h);
  }
};

template <class T>
void reduce(const BackwardParams& params, const BackwardWorkspace& workspace, cudaStream_t stream) {
  launch_dmask(params, params,
               AttentionScoreGradient<T>{.shape = shape_of(params),
                                         .q1 = rows_of<const T>(params.q1),
                                         .q2 = rows_of<const T>(params.q2),
                                         .k1 = rows_of<const T>(params.k1),
                                         .k2 = rows_of<const T>(params.k2),
                                         .v = rows_of<const T>(params.v),
                                         .d_o = rows_of<const T>(workspace.d_o),
                                         .state = workspace.state,
                                         .ds_factors = workspace.row_factors.ds,
                                         .scale_log2 = static_cast<float>(params.scale * kLog2E),
                                         .scale2_log2 = static_cast<float>(params.scale2 * kLog2E)},
               stream);
}

}  // namespace

void reduce_dmask(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream) {
  if (params.dmask == nullptr) return;
  switch (params.dtype) {
    case Dtype::kBFloat16: return reduce<bfloat16>(params, workspace, stream);
    case Dtype::kFloat16: return reduce<float16>(params, workspace, stream);
    default: return reduce<float>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda
