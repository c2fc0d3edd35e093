// SPDX-License-Identifier: Apache-2.0
#include "nn/attention/step_attention.h"

#include <cmath>
#include <typeinfo>

#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using Map = StepAttention::Map;

Map step_map(const torch::nn::Linear& linear) { return {linear->weight, linear->bias}; }

Map step_rows(const torch::nn::Linear& linear, int64_t begin, int64_t count) {
  const Tensor bias = linear->bias.defined() ? linear->bias.narrow(0, begin, count) : Tensor();
  return {linear->weight.narrow(0, begin, count), bias};
}

}  // namespace

std::optional<StepAttention> MultiheadDiffAttentionImpl::step_attention() {
  const bool drops = options.dropout() > 0.0 && is_training();
  // Derived classes override the projections or the combination of heads.
  if (typeid(*this) != typeid(MultiheadDiffAttentionImpl) || drops || options.cross_attention() ||
      shares_tensors() || options.route() != Route::kFused ||
      options.pairing() != GqaPairing::kPaired || !options.causal()) {
    return std::nullopt;
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
  const bool warm = options.kind() == AttentionKind::kTemperature;
  StepAttention step{.out = step_map(out_proj_),
                     .lambda_factor = lambda_factor_,
                     .kind = options.kind(),
                     .sizes = sizes,
                     .noise_heads = options.noise_heads().value_or(0),
                     .halves = options.layout() == HeadLayout::kHalves,
                     .scale = scale,
                     .scale2 = warm ? scale / options.temperature() : scale,
                     .window = options.window(),
                     .rotary = rotary_};
  if (qkv_proj_) {
    const int64_t q_rows = sizes.query_heads * sizes.head_dim;
    const int64_t k_rows = sizes.key_heads * sizes.head_dim;
    step.q = step_rows(qkv_proj_, 0, q_rows);
    step.k = step_rows(qkv_proj_, q_rows, k_rows);
    step.v = step_rows(qkv_proj_, q_rows + k_rows, sizes.kv_heads * sizes.value_dim);
  } else {
    step.q = step_map(q_proj_);
    step.k = step_map(k_proj_);
    step.v = step_map(v_proj_);
  }
  if (options.kind() != AttentionKind::kPlain && options.lambda() == LambdaKind::kToken) {
    step.lambda_proj = step_map(lambda_proj_);
  } else {
    const Tensor& like = out_proj_->weight;
    step.lambda = lambda(like, like.scalar_type()).to(torch::kFloat32);
  }
  if (options.head_norm() != HeadNorm::kNone) {
    step.norm_eps = options.norm_eps();
    step.norm_weight = norm_weight_;
  }
  return step;
}

}  // namespace diffattn::nn
