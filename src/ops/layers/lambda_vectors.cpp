// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/lambda_vectors.h"

#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LambdaFunction : public torch::autograd::Function<LambdaFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q1, const Tensor& k1, const Tensor& q2,
                        const Tensor& k2, double init) {
    const auto [lambda, exponentials] = ops::cuda_layers()->lambda_vectors({q1, k1, q2, k2}, init);
    ctx->save_for_backward({q1, k1, q2, k2, exponentials});
    return lambda;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("lambda_of_vectors");
    const auto s = ctx->get_saved_variables();
    const Tensor gradients = ops::cuda_layers()->lambda_vectors_backward(
        {s[0], s[1], s[2], s[3]}, s[4], grads[0].contiguous());
    return {gradients[0], gradients[1], gradients[2], gradients[3], Tensor()};
  }
};

}  // namespace

bool takes_lambda_vectors(const LambdaVectors& vectors) {
  const auto fits = [&](const Tensor& t) {
    return ops::is_for_gpu(t) && t.scalar_type() == torch::kFloat32 && t.is_contiguous() &&
           t.sizes() == vectors.q1.sizes() && t.device() == vectors.q1.device();
  };
  return vectors.q1.dim() == 1 && fits(vectors.q1) && fits(vectors.k1) && fits(vectors.q2) &&
         fits(vectors.k2);
}

Tensor lambda_of_vectors(const LambdaVectors& vectors, double init) {
  return LambdaFunction::apply(vectors.q1, vectors.k1, vectors.q2, vectors.k2, init);
}

}  // namespace diffattn
