// SPDX-License-Identifier: Apache-2.0
#include "nn/parts/feed_forward.h"

#include "diffattn/ops.h"
#include "diffattn/ops_layers.h"
#include "ops/layers/linears.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

void check_width(const char* name, int64_t size) {
  if (size < 1) throw_argument_error(name, "a width of at least 1", std::to_string(size));
}

torch::nn::Linear make_projection(int64_t in, int64_t out, bool bias) {
  check_width("dim", in);
  check_width("hidden", out);
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

Tensor through(const torch::nn::Linear& map, const Tensor& x) {
  return diffattn::linear(x, map->weight, map->bias);
}

}  // namespace

PolyNormImpl::PolyNormImpl(double eps_) : eps(eps_) {
  weight = register_parameter("weight", torch::full({3}, 1.0 / 3.0));
  bias = register_parameter("bias", torch::zeros({1}));
}

Tensor PolyNormImpl::forward(const Tensor& x) {
  const auto type = x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const Tensor t = x.to(type), w = weight.to(type);
  const Tensor square = t * t;
  const auto scale = [&](const Tensor& squares) {  // 1 / sqrt(mean + eps)
    return (squares.mean(-1, /*keepdim=*/true) + eps).rsqrt();
  };
  // Horner's scheme in t, with one factor per row: t (w2 r1 + t (w1 r2 + t w0 r3)) + b.
  const Tensor quartic = square * square;
  const Tensor first = w[2] * scale(square), second = w[1] * scale(quartic);
  const Tensor third = w[0] * scale(quartic * square);
  const Tensor y = torch::addcmul(first, t, torch::addcmul(second, t, third)) * t + bias.to(type);
  return y.to(x.scalar_type());
}

PolyGLUImpl::PolyGLUImpl(int64_t dim, int64_t hidden, bool bias) {
  gate_proj = register_module("gate_proj", make_projection(dim, hidden, bias));
  up_proj = register_module("up_proj", make_projection(dim, hidden, bias));
  down_proj = register_module("down_proj", make_projection(hidden, dim, bias));
  act_fn = register_module("act_fn", PolyNorm());
}

Tensor PolyGLUImpl::forward(const Tensor& x) {
  const auto both =
      linears(x, {{gate_proj->weight, gate_proj->bias}, {up_proj->weight, up_proj->bias}});
  return through(down_proj, act_fn(both[0]) * both[1]);
}

MergedSwiGLUImpl::MergedSwiGLUImpl(int64_t dim, int64_t hidden, bool bias) {
  fc1 = register_module("fc1", make_projection(dim, 2 * hidden, bias));
  fc2 = register_module("fc2", make_projection(hidden, dim, bias));
}

Tensor MergedSwiGLUImpl::forward(const Tensor& x) {
  const auto halves = through(fc1, x).chunk(2, -1);
  return through(fc2, swiglu(halves[0], halves[1]));
}

}  // namespace diffattn::nn
