// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a layer for generation on the CPU (ops/layers/token_layer.h).

#include <cmath>
#include <typeinfo>

#include "diffattn/nn/multihead_diff_attention.h"
#include "nn/attention/inputs.h"
#include "nn/attention/layout.h"
#include "ops/layers/token_layer.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

LinearMap map_of(const torch::nn::Linear& linear) { return {linear->weight, linear->bias}; }

bool is_host_float(const Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == torch::kFloat32 && t.is_contiguous();
}

/// Computes exp(q . k) in float32, like the module.
float exponential(const Tensor& q, const Tensor& k) {
  const float *x = q.const_data_ptr<float>(), *y = k.const_data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < q.numel(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return std::exp(static_cast<float>(sum));
}

bool is_one_or_each(torch::IntArrayRef sizes, int64_t rows) {
  return sizes == torch::IntArrayRef({1}) || sizes == torch::IntArrayRef({rows, 1});
}

/// True if `token_layer` can read the angles. The general code handles all others, or throws.
bool has_plain_angles(const AttentionInput& input, const RotateOptions& rotation) {
  const int64_t rows = input.x.size(0);
  if (rotation.width == 0) return true;
  if (!input.angles) return !input.positions || is_one_or_each(input.positions->sizes(), rows);
  const auto fits = [&](const Tensor& t) {
    return t.defined() && t.device().is_cpu() && t.scalar_type() == torch::kFloat32 &&
           t.dim() > 1 && t.size(-1) == rotation.width / 2 &&
           is_one_or_each(t.sizes().slice(0, t.dim() - 1), rows);
  };
  const auto& [cos, sin] = *input.angles;
  return fits(cos) && fits(sin) && cos.sizes() == sin.sizes();
}

/// True for one token in each of B rows with no mask except a window and key_starts [B]. The
/// general code handles everything else, or throws.
bool is_next_token(const AttentionInput& input) {
  const AttentionMask& mask = input.mask;
  if (input.x.dim() != 3 || input.x.size(1) != 1 || input.context || mask.mask() ||
      mask.key_lengths() || mask.cu_seqlens_q() || mask.cu_seqlens_k() ||
      mask.window().value_or(0) < 0) {
    return false;
  }
  const auto& starts = mask.key_starts();
  return !starts ||
         (starts->device().is_cpu() &&
          (starts->scalar_type() == torch::kInt || starts->scalar_type() == torch::kLong) &&
          starts->sizes() == input.x.sizes().slice(0, 1));
}

}  // namespace

/// Returns lambda if it is one number and its parameters are in host memory.
std::optional<double> MultiheadDiffAttentionImpl::lambda_number() const {
  if (options.kind() == AttentionKind::kPlain) return 0.0;
  switch (options.lambda()) {
    case LambdaKind::kVectors: {
      for (const Tensor& vector : {lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_}) {
        if (!is_host_float(vector)) return std::nullopt;
      }
      const float difference =
          exponential(lambda_q1_, lambda_k1_) - exponential(lambda_q2_, lambda_k2_);
      return lambda_factor_ * (difference + static_cast<float>(sizes.lambda_init));
    }
    case LambdaKind::kLearned:
      if (!is_host_float(lambda_)) return std::nullopt;
      return lambda_factor_ * *lambda_.const_data_ptr<float>();
    case LambdaKind::kFixed: return lambda_factor_ * sizes.lambda_init;
    case LambdaKind::kToken: break;
  }
  return std::nullopt;
}

std::optional<TokenAttention> MultiheadDiffAttentionImpl::token_attention(
    const AttentionInput& input) const {
  const AttentionMask& mask = input.mask;
  const bool known = options.kind() == AttentionKind::kV1 || options.kind() == AttentionKind::kV2 ||
                     options.kind() == AttentionKind::kPlain;
  const bool drops = options.dropout() > 0.0 && is_training();
  // Derived classes override the projections or the combination of heads.
  if (typeid(*this) != typeid(MultiheadDiffAttentionImpl) || !known || drops ||
      !is_next_token(input) || !has_plain_angles(input, rotary_->rotation()) || qkv_proj_ ||
      options.cross_attention() || options.route() != Route::kFused ||
      options.pairing() != GqaPairing::kPaired || !mask.causal().value_or(options.causal()) ||
      input.cache == nullptr || input.cache->empty() || input.cache->dropped() > 0 ||
      shares_tensors()) {
    return std::nullopt;
  }
  const std::optional<double> lambda = lambda_number();
  if (!lambda) return std::nullopt;
  TokenAttention result{.q = map_of(q_proj_),
                        .k = map_of(k_proj_),
                        .v = map_of(v_proj_),
                        .out = map_of(out_proj_),
                        .heads = sizes.heads,
                        .kv_heads = sizes.kv_heads,
                        .query_heads = sizes.query_heads,
                        .key_heads = sizes.key_heads,
                        .head_dim = sizes.head_dim,
                        .value_dim = sizes.value_dim,
                        .halves = options.layout() == HeadLayout::kHalves,
                        .lambda = *lambda,
                        .out_scale = sizes.out_scale};
  if (options.head_norm() != HeadNorm::kNone) {
    result.norm_eps = options.norm_eps();
    result.norm_weight = norm_weight_;
  }
  return result;
}

TokenPast MultiheadDiffAttentionImpl::token_past(const AttentionInput& input) {
  const RotaryTable table = rotary_table(*rotary_, input);
  const int64_t rows = input.x.size(0);
  const auto like = input.x.options();
  const auto keys = input.cache->extend(kKeySlot, {rows, 1, sizes.key_heads, sizes.head_dim}, like);
  const auto values =
      input.cache->extend(kValueSlot, {rows, 1, sizes.kv_heads, sizes.value_dim}, like);
  return {.cos = table.cos.defined() ? table.cos.contiguous() : table.cos,
          .sin = table.sin.defined() ? table.sin.contiguous() : table.sin,
          .rotation = rotary_->rotation(),
          .keys = keys.buffer,
          .values = values.buffer,
          .length = keys.begin,
          .key_starts = input.mask.key_starts(),
          .window = input.mask.window() ? input.mask.window() : options.window()};
}

}  // namespace diffattn::nn
