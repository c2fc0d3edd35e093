// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/rms_norm.h"

#include "diffattn/ops.h"
#include "diffattn/ops_layers.h"

namespace diffattn::nn {

RMSNormImpl::RMSNormImpl(const RMSNormOptions& options_) : options(options_) { reset(); }

void RMSNormImpl::reset() {
  if (options.dim() < 1) {
    throw_argument_error("dim", "a width of at least 1", std::to_string(options.dim()));
  }
  if (!(options.eps() >= 0.0)) {
    throw_argument_error("eps", "a number that is not negative", std::to_string(options.eps()));
  }
  if (options.elementwise_affine()) {
    weight = register_parameter("weight", torch::empty({options.dim()}));
  } else {
    weight = register_parameter("weight", torch::Tensor(), /*requires_grad=*/false);
  }
  reset_parameters();
}

void RMSNormImpl::reset_parameters() {
  if (options.elementwise_affine()) torch::nn::init::ones_(weight);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "diffattn::nn::RMSNorm(" << options.dim() << ", eps=" << options.eps()
         << ", elementwise_affine=" << (options.elementwise_affine() ? "true" : "false") << ")";
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  const bool affine = options.elementwise_affine();
  const bool one_type = !affine || weight.scalar_type() == x.scalar_type();
  const bool rounds = x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kFloat16;
  if (one_type && (options.rounding() == NormRounding::kOnce || !rounds)) {
    return diffattn::rms_norm(x, weight, options.eps());
  }
  const torch::Tensor wide = x.scalar_type() == torch::kFloat64 ? x : x.to(torch::kFloat32);
  const torch::Tensor y =
      wide * torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + options.eps());
  if (options.rounding() == NormRounding::kBeforeWeight) {
    return affine ? y.to(x.scalar_type()) * weight : y.to(x.scalar_type());
  }
  return (y * weight.to(y.scalar_type())).to(x.scalar_type());
}

}  // namespace diffattn::nn
