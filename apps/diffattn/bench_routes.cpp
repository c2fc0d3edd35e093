// SPDX-License-Identifier: Apache-2.0
#include "bench_routes.h"

#include "diffattn/ops.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

/// [B, H, N, width] -> [B, N, H, width] and back, as a view.
Tensor swapped(const Tensor& x) { return x.transpose(1, 2); }

Tensor by_route(nn::Route route, const LayerTensors& t, bool causal) {
  return swapped(attend(route, {.q1 = swapped(t.q1),
                                .q2 = swapped(t.q2),
                                .k1 = swapped(t.k1),
                                .k2 = swapped(t.k2),
                                .v = swapped(t.v),
                                .lambda = t.lambda,
                                .options = AttentionOptions().causal(causal)}));
}

/// A Transformer of equal width: 2H heads of width D.
Tensor plain(const LayerTensors& t, bool causal) {
  const Tensor v = torch::cat(t.v.chunk(2, -1), 1);
  const auto o = at::scaled_dot_product_attention(torch::cat({t.q1, t.q2}, 1),
                                                  torch::cat({t.k1, t.k2}, 1), v, {}, 0.0, causal);
  return torch::cat(o.chunk(2, 1), -1);
}

std::vector<Route> all_routes() {
  std::vector<Route> list;
  for (const nn::Route route : nn::routes()) {
    list.push_back({route_name(route), false, [route](const LayerTensors& t, bool causal) {
                      return by_route(route, t, causal);
                    }});
  }
  list.push_back({"plain attention", true, plain});
  return list;
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
  static const std::vector<Route> list = all_routes();
  return list;
}

Tensor fused_decode(const LayerTensors& t) {
  return swapped(
      decode(swapped(t.q1), swapped(t.q2), swapped(t.k1), swapped(t.k2), swapped(t.v), t.lambda));
}

}  // namespace diffattn::app
