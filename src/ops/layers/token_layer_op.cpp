// SPDX-License-Identifier: Apache-2.0
//
// token_layer as an operator, for Hugging Face's DiffLlama in Python.

#include <array>
#include <cmath>

#include "ops/layers/layers.h"
#include "ops/layers/token_layer.h"

namespace diffattn {
namespace {

using torch::Tensor;

/// The order of the tensors of a layer.
enum Part {
  kInputNorm,
  kQ,
  kK,
  kV,
  kOut,
  kPostNorm,
  kGate,
  kUp,
  kDown,
  kQ1,
  kK1,
  kQ2,
  kK2,
  kParts
};

constexpr std::array<const char*, kParts> kNames = {
    "input_norm", "q",    "k",         "v",         "out",       "post_norm", "gate",
    "up",         "down", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"};

void check_shape(const char* name, const Tensor& tensor, at::IntArrayRef expected) {
  TORCH_CHECK(tensor.sizes() == expected, "diffattn: argument '", name, "': expected shape ",
              expected, ", got ", tensor.sizes());
}

void check_parts(const Tensor& x, at::TensorList parts) {
  TORCH_CHECK(parts.size() == kParts, "diffattn: argument 'parts': expected ", int{kParts},
              " tensors, got ", parts.size());
  const int64_t width = x.size(-1), dim = parts[kQ1].numel(), inner = parts[kGate].size(0);
  const int64_t queries = parts[kQ].size(0), keys = parts[kK].size(0);
  TORCH_CHECK(dim > 0 && queries % (2 * dim) == 0 && keys > 0 && keys % (2 * dim) == 0 &&
                  queries % keys == 0,
              "diffattn: arguments 'q' and 'k': expected pairs of heads of width ", dim, ", got ",
              queries, " and ", keys, " rows");
  const std::array<std::vector<int64_t>, kParts> shapes = {{{width},
                                                            {queries, width},
                                                            {keys, width},
                                                            {keys, width},
                                                            {width, queries},
                                                            {width},
                                                            {inner, width},
                                                            {inner, width},
                                                            {width, inner},
                                                            {dim},
                                                            {dim},
                                                            {dim},
                                                            {dim}}};
  for (size_t i = 0; i < kParts; ++i) {
    check_shape(kNames[i], parts[i], shapes[i]);
    TORCH_CHECK(parts[i].device().is_cpu() && parts[i].scalar_type() == torch::kFloat32 &&
                    parts[i].is_contiguous(),
                "diffattn: argument '", kNames[i], "': expected contiguous float32 on the CPU");
  }
}

/// keys [B, capacity, Hkv, D], values [B, capacity, Hkv / 2, 2 D], each token's heads in one piece.
void check_cache(const char* name, const Tensor& cache, at::IntArrayRef expected) {
  check_shape(name, cache, expected);
  TORCH_CHECK(cache.device().is_cpu() && cache.scalar_type() == torch::kFloat32 &&
                  cache.stride(-1) == 1 && cache.stride(-2) == cache.size(-1),
              "diffattn: argument '", name,
              "': expected float32 on the CPU with the heads of a token together");
}

double exp_dot(const Tensor& a, const Tensor& b) {
  return std::exp(torch::dot(a, b).item<float>());
}

Tensor token_layer_of_parts(const Tensor& x, at::TensorList parts, const Tensor& keys,
                            const Tensor& values, int64_t length, const Tensor& cos,
                            const Tensor& sin, const std::optional<Tensor>& key_starts,
                            double norm_eps, double head_norm_eps, double lambda_init) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK(x.dim() == 3, "diffattn: argument 'x': expected [B, 1, E], got ", x.sizes());
  check_parts(x, parts);
  const int64_t dim = parts[kQ1].numel(), key_heads = parts[kK].size(0) / dim;
  const int64_t room = keys.dim() == 4 ? keys.size(1) : 0;
  check_cache("keys", keys, {x.size(0), room, key_heads, dim});
  check_cache("values", values, {x.size(0), room, key_heads / 2, 2 * dim});
  TORCH_CHECK(length >= 0 && length < room, "diffattn: argument 'length': expected [0, ", room,
              "), got ", length);
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.scalar_type() == torch::kFloat32 &&
                  sin.scalar_type() == torch::kFloat32,
              "diffattn: arguments 'cos' and 'sin': expected contiguous float32");
  const int64_t query_heads = parts[kQ].size(0) / dim;
  const TokenLayer layer{.input_norm = parts[kInputNorm],
                         .post_norm = parts[kPostNorm],
                         .norm_eps = norm_eps,
                         .attention = {.q = {parts[kQ]},
                                       .k = {parts[kK]},
                                       .v = {parts[kV]},
                                       .out = {parts[kOut]},
                                       .heads = query_heads / 2,
                                       .kv_heads = key_heads / 2,
                                       .query_heads = query_heads,
                                       .key_heads = key_heads,
                                       .head_dim = dim,
                                       .value_dim = 2 * dim,
                                       .halves = true,
                                       .lambda = exp_dot(parts[kQ1], parts[kK1]) -
                                                 exp_dot(parts[kQ2], parts[kK2]) + lambda_init,
                                       .out_scale = 1 - lambda_init,
                                       .norm_eps = head_norm_eps},
                         .gate = {parts[kGate]},
                         .up = {parts[kUp]},
                         .down = {parts[kDown]}};
  const TokenPast past{.cos = cos,
                       .sin = sin,
                       .rotation = {.width = dim},
                       .keys = keys,
                       .values = values,
                       .length = length,
                       .key_starts = key_starts};
  TORCH_CHECK(takes_token(x, layer),
              "diffattn: argument 'x': expected a few rows of float32 "
              "on the CPU, [B, 1, E], got ",
              x.scalar_type(), " ", x.sizes());
  return token_layer(x, layer, past);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def(
      "token_layer(Tensor x, Tensor[] parts, Tensor(a!) keys, Tensor(b!) values, int length, "
      "Tensor cos, Tensor sin, *, Tensor? key_starts=None, float norm_eps=1e-05, "
      "float head_norm_eps=1e-05, float lambda_init=0.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(diffattn, CPU, m) { m.impl("token_layer", token_layer_of_parts); }

}  // namespace diffattn
