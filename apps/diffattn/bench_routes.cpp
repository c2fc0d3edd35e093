// SPDX-License-Identifier: Apache-2.0
#include "bench_routes.h"

#include <cmath>

#include "diffattn/ops.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

double scale_of(const LayerTensors& t) {
  return 1.0 / std::sqrt(static_cast<double>(t.q1.size(-1)));
}

Tensor sdpa(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
            bool gqa = false) {
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal, scale, gqa);
}

Tensor difference(const LayerTensors& t, const Tensor& o1, const Tensor& o2) {
  return o1 - t.lambda.to(o1.scalar_type()) * o2;
}

Tensor fused(const LayerTensors& t, bool causal) {
  const auto rows_first = [](const Tensor& x) { return x.transpose(1, 2); };  // a view
  return attention(rows_first(t.q1), rows_first(t.q2), rows_first(t.k1), rows_first(t.k2),
                   rows_first(t.v), t.lambda, AttentionOptions().causal(causal))
      .transpose(1, 2);
}

/// The paper's code: both maps in memory, in the storage type.
Tensor naive(const LayerTensors& t, bool causal) {
  const auto map = [&](const Tensor& q, const Tensor& k) {
    Tensor s = (q * scale_of(t)).matmul(k.transpose(-1, -2));
    if (causal) s = s + torch::full({s.size(-2), s.size(-1)}, -INFINITY, s.options()).triu(1);
    return s.softmax(-1, torch::kFloat32).to(q.scalar_type());
  };
  return difference(t, map(t.q1, t.k1), map(t.q2, t.k2)).matmul(t.v);
}

Tensor two_calls(const LayerTensors& t, bool causal) {
  return difference(t, sdpa(t.q1, t.k1, t.v, scale_of(t), causal),
                    sdpa(t.q2, t.k2, t.v, scale_of(t), causal));
}

/// q and k padded to V's width, so that the flash kernel takes them.
Tensor two_calls_padded(const LayerTensors& t, bool causal) {
  const auto pad = [&](const Tensor& x) { return torch::constant_pad_nd(x, {0, x.size(-1)}); };
  return difference(t, sdpa(pad(t.q1), pad(t.k1), t.v, scale_of(t), causal),
                    sdpa(pad(t.q2), pad(t.k2), t.v, scale_of(t), causal));
}

Tensor four_calls(const LayerTensors& t, bool causal) {
  std::vector<Tensor> halves;
  for (const Tensor& half : t.v.chunk(2, -1)) {
    halves.push_back(difference(t, sdpa(t.q1, t.k1, half, scale_of(t), causal),
                                sdpa(t.q2, t.k2, half, scale_of(t), causal)));
  }
  return torch::cat(halves, -1);
}

/// Four heads for each: (map 1, map 1, map 2, map 2) with (v left, v right, v left, v right).
Tensor one_call_4h(const LayerTensors& t, bool causal) {
  const auto halves = t.v.chunk(2, -1);
  const Tensor o =
      sdpa(torch::cat({t.q1, t.q1, t.q2, t.q2}, 1), torch::cat({t.k1, t.k1, t.k2, t.k2}, 1),
           torch::cat({halves[0], halves[1], halves[0], halves[1]}, 1), scale_of(t), causal);
  const auto part = o.chunk(4, 1);
  return difference(t, torch::cat({part[0], part[1]}, -1), torch::cat({part[2], part[3]}, -1));
}

Tensor one_call_wide_v(const LayerTensors& t, bool causal) {
  const auto o = sdpa(torch::cat({t.q1, t.q2}, 1), torch::cat({t.k1, t.k2}, 1),
                      torch::cat({t.v, t.v}, 1), scale_of(t), causal)
                     .chunk(2, 1);
  return difference(t, o[0], o[1]);
}

/// Query heads [q1|0] and [0|q2] against one key head [k1|k2], all of width 2D.
Tensor zero_padded_gqa(const LayerTensors& t, bool causal) {
  const Tensor zero = torch::zeros_like(t.q1);
  const Tensor q =
      torch::stack({torch::cat({t.q1, zero}, -1), torch::cat({zero, t.q2}, -1)}, 2).flatten(1, 2);
  const Tensor o = sdpa(q, torch::cat({t.k1, t.k2}, -1), t.v, scale_of(t), causal, /*gqa=*/true)
                       .unflatten(1, {-1, 2});
  return difference(t, o.select(2, 0), o.select(2, 1));
}

/// A Transformer of equal width: 2H heads of width D.
Tensor plain(const LayerTensors& t, bool causal) {
  const Tensor v = torch::cat(t.v.chunk(2, -1), 1);
  const auto o =
      sdpa(torch::cat({t.q1, t.q2}, 1), torch::cat({t.k1, t.k2}, 1), v, scale_of(t), causal);
  return torch::cat(o.chunk(2, 1), -1);
}

}  // namespace

LayerTensors make_layer(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim,
                        torch::TensorOptions options) {
  const auto make = [&](int64_t width) {
    return torch::randn({batch, heads, seq, width}, options).requires_grad_(true);
  };
  LayerTensors t{make(head_dim), make(head_dim),     make(head_dim),
                 make(head_dim), make(2 * head_dim), {}};
  t.lambda = torch::full({}, 0.5, options.dtype(torch::kFloat32)).requires_grad_(true);
  return t;
}

const std::vector<Route>& routes() {
  static const std::vector<Route> list{{"fused", false, fused},
                                       {"naive", false, naive},
                                       {"two calls", false, two_calls},
                                       {"two calls, padded", false, two_calls_padded},
                                       {"four calls", false, four_calls},
                                       {"one call, 4h heads", false, one_call_4h},
                                       {"one call, wide V", false, one_call_wide_v},
                                       {"zero-padded GQA", false, zero_padded_gqa},
                                       {"plain attention", true, plain}};
  return list;
}

}  // namespace diffattn::app
