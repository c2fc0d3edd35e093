// SPDX-License-Identifier: Apache-2.0
//
// The parameters of lambda and of the head norm.

#include "diffattn/nn/multihead_diff_attention.h"
#include "ops/layers/lambda_vectors.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

torch::ScalarType at_least_float32(torch::ScalarType type) {
  return type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace

void MultiheadDiffAttentionImpl::register_lambda_and_norm() {
  const ParameterNames& names = options.names();
  torch::nn::Module* holder = this;
  if (!names.inner.empty()) {
    holder = register_module(names.inner, std::make_shared<torch::nn::Module>(names.inner)).get();
  }
  if (options.head_norm() == HeadNorm::kAffine) {
    const auto norm =
        holder->register_module(names.norm, std::make_shared<torch::nn::Module>(names.norm));
    norm_weight_ = norm->register_parameter("weight", torch::ones({sizes.value_dim}));
  }
  if (options.kind() == AttentionKind::kPlain) return;
  const auto vector = [&](const char* name) {
    return holder->register_parameter(name, torch::empty({sizes.head_dim}));
  };
  switch (options.lambda()) {
    case LambdaKind::kVectors:
      lambda_q1_ = vector("lambda_q1");
      lambda_k1_ = vector("lambda_k1");
      lambda_q2_ = vector("lambda_q2");
      lambda_k2_ = vector("lambda_k2");
      break;
    case LambdaKind::kToken:
      lambda_proj_ = register_module(
          names.lambda_proj,
          torch::nn::Linear(
              torch::nn::LinearOptions(options.embed_dim(), sizes.heads).bias(false)));
      break;
    case LambdaKind::kLearned:
      lambda_ = holder->register_parameter("lambda", torch::empty({}));
      break;
    case LambdaKind::kFixed: break;
  }
}

Tensor MultiheadDiffAttentionImpl::lambda(const Tensor& x, torch::ScalarType activations) {
  const Tensor value = unscaled_lambda(x, activations);
  return lambda_factor_ == 1.0 ? value : value * lambda_factor_;
}

Tensor MultiheadDiffAttentionImpl::unscaled_lambda(const Tensor& x, torch::ScalarType activations) {
  const bool reference = options.lambda_precision() == LambdaPrecision::kReference;
  const auto type = reference ? activations : at_least_float32(activations);
  const auto constant = [&](double value) {
    return torch::full({}, value, torch::TensorOptions().device(x.device()).dtype(type));
  };
  if (options.kind() == AttentionKind::kPlain) return constant(0.0);
  switch (options.lambda()) {
    case LambdaKind::kVectors: {
      const LambdaVectors vectors{lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_};
      if (type == torch::kFloat32 && takes_lambda_vectors(vectors)) {
        return lambda_of_vectors(vectors, sizes.lambda_init);
      }
      const auto exponential = [&](const Tensor& q, const Tensor& k) {
        const auto wide = at_least_float32(q.scalar_type());
        return (q.to(wide) * k.to(wide)).sum().exp().to(type);
      };
      return exponential(lambda_q1_, lambda_k1_) - exponential(lambda_q2_, lambda_k2_) +
             sizes.lambda_init;
    }
    case LambdaKind::kToken: return lambda_proj_->forward(x).to(type).sigmoid();
    case LambdaKind::kLearned: return lambda_.to(type);
    case LambdaKind::kFixed: break;
  }
  return constant(sizes.lambda_init);
}

void MultiheadDiffAttentionImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  for (torch::nn::Linear linear : {q_proj_, k_proj_, v_proj_, qkv_proj_, out_proj_, lambda_proj_}) {
    if (linear) linear->reset_parameters();
  }
  for (const Tensor& vector : {lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_}) {
    if (vector.defined()) vector.normal_(0.0, options.lambda_std());
  }
  if (lambda_.defined()) lambda_.fill_(sizes.lambda_init);
  if (norm_weight_.defined()) norm_weight_.fill_(1.0);
}

}  // namespace diffattn::nn
