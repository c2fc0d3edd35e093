// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/routes/routes.h"

#include <ATen/Context.h>

#include <utility>

#include "diffattn/ops.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

/// Returns the view [B, H, N, width] -> [B, N, H, width], or back.
Tensor swapped(const Tensor& x) { return x.transpose(1, 2); }

Tensor by_route(nn::Route route, const LayerTensors& t, const AttentionOptions& options) {
  return swapped(attend(route, {.q1 = swapped(t.q1),
                                .q2 = swapped(t.q2),
                                .k1 = swapped(t.k1),
                                .k2 = swapped(t.k2),
                                .v = swapped(t.v),
                                .lambda = t.lambda,
                                .options = options}));
}

/// Computes the attention of a Transformer of equal width: 2H heads of width D.
Tensor plain(const LayerTensors& t, const AttentionOptions& options) {
  const Tensor v = torch::cat(t.v.chunk(2, -1), 1);
  const auto o =
      at::scaled_dot_product_attention(torch::cat({t.q1, t.q2}, 1), torch::cat({t.k1, t.k2}, 1), v,
                                       options.mask(), 0.0, options.causal());
  return torch::cat(o.chunk(2, 1), -1);
}

const std::vector<std::pair<SdpaKernels, std::string>>& forced_kernels() {
  static const std::vector<std::pair<SdpaKernels, std::string>> list{
      {SdpaKernels::kCudnn, "cuDNN"},
      {SdpaKernels::kFlash, "flash"},
      {SdpaKernels::kMemoryEfficient, "efficient"}};
  return list;
}

std::vector<BenchRoute> all_routes(bool on_gpu) {
  std::vector<BenchRoute> list;
  const auto add = [&](const BenchRoute& route, bool calls_torch) {
    const auto more =
        on_gpu && calls_torch ? with_each_kernels(route) : std::vector<BenchRoute>{route};
    list.insert(list.end(), more.begin(), more.end());
  };
  for (const nn::Route route : nn::routes()) {
    const auto compute = [route](const LayerTensors& t, const AttentionOptions& options) {
      return by_route(route, t, options);
    };
    add({.name = route_name(route), .compute = compute},
        route != nn::Route::kFused && route != nn::Route::kNaive);
  }
  add({.name = "plain attention", .plain = true, .compute = plain}, true);
  return list;
}

}  // namespace

ForcedKernels::ForcedKernels(SdpaKernels kernels) {
  at::Context& context = at::globalContext();
  before_ = {context.userEnabledCuDNNSDP(), context.userEnabledFlashSDP(),
             context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP()};
  if (kernels == SdpaKernels::kAny) return;
  context.setSDPUseCuDNN(kernels == SdpaKernels::kCudnn);
  context.setSDPUseFlash(kernels == SdpaKernels::kFlash);
  context.setSDPUseMemEfficient(kernels == SdpaKernels::kMemoryEfficient);
  context.setSDPUseMath(false);
}

ForcedKernels::~ForcedKernels() {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(before_[0]);
  context.setSDPUseFlash(before_[1]);
  context.setSDPUseMemEfficient(before_[2]);
  context.setSDPUseMath(before_[3]);
}

Tensor BenchRoute::operator()(const LayerTensors& tensors, const AttentionOptions& options) const {
  const ForcedKernels forced(kernels);
  return compute(tensors, options);
}

std::vector<BenchRoute> with_each_kernels(const BenchRoute& route) {
  std::vector<BenchRoute> list;
  for (const auto& [kernels, name] : forced_kernels()) {
    list.push_back(route);
    list.back().kernels = kernels;
    list.back().name += ", " + name;
  }
  return list;
}

LayerTensors random_layer(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim,
                          torch::TensorOptions options, bool lambda_per_token) {
  const auto make = [&](int64_t width) {
    return torch::randn({batch, heads, seq, width}, options).requires_grad_(true);
  };
  LayerTensors t{make(head_dim), make(head_dim),     make(head_dim),
                 make(head_dim), make(2 * head_dim), {}};
  const auto wide = options.dtype(torch::kFloat32);
  t.lambda = lambda_per_token ? torch::rand({batch, seq, heads}, wide) : torch::full({}, 0.5, wide);
  t.lambda.requires_grad_(true);
  return t;
}

const std::vector<BenchRoute>& bench_routes(bool on_gpu) {
  static const std::vector<BenchRoute> on_cpu_list = all_routes(false),
                                       on_gpu_list = all_routes(true);
  return on_gpu ? on_gpu_list : on_cpu_list;
}

Tensor fused_decode(const LayerTensors& t) {
  return swapped(
      decode(swapped(t.q1), swapped(t.q2), swapped(t.k1), swapped(t.k2), swapped(t.v), t.lambda));
}

}  // namespace diffattn::app
