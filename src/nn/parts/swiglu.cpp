// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/swiglu.h"

#include "diffattn/ops.h"
#include "diffattn/ops_layers.h"
#include "ops/layers/gated.h"

namespace diffattn::nn {

SwiGLUImpl::SwiGLUImpl(const SwiGLUOptions& options_) : options(options_) { reset(); }

void SwiGLUImpl::reset() {
  const auto at_least_one = [](const char* name, int64_t size) {
    if (size < 1) throw_argument_error(name, "a width of at least 1", std::to_string(size));
  };
  at_least_one("dim", options.dim());
  at_least_one("hidden", options.hidden());
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    return register_module(
        name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias())));
  };
  if (options.merged()) {
    gate_up_proj = linear("gate_up_proj", options.dim(), 2 * options.hidden());
  } else {
    gate_proj = linear("gate_proj", options.dim(), options.hidden());
    up_proj = linear("up_proj", options.dim(), options.hidden());
  }
  down_proj = linear("down_proj", options.hidden(), options.dim());
}

torch::Tensor SwiGLUImpl::forward(const torch::Tensor& x) {
  const auto through = [](const torch::nn::Linear& map, const torch::Tensor& rows) {
    return diffattn::linear(rows, map->weight, map->bias);
  };
  if (!options.merged() && !options.bias()) {
    return through(down_proj, gated_products(x, gate_proj->weight, up_proj->weight));
  }
  if (!options.merged()) {
    return through(down_proj, swiglu(through(gate_proj, x), through(up_proj, x)));
  }
  const auto halves = through(gate_up_proj, x).chunk(2, -1);
  return through(down_proj, swiglu(halves[0], halves[1]));
}

}  // namespace diffattn::nn
