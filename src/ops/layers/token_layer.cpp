// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/token_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "diffattn/kernels/backend.h"
#include "kernels/few_rows.h"
#include "kernels/layers.h"
#include "ops/dispatch/backend_choice.h"
#include "ops/glue/problem_views.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;

const float* data_of(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

bool is_plain(const Tensor& t) {
  return !t.defined() ||
         (t.device().is_cpu() && t.scalar_type() == torch::kFloat32 && t.is_contiguous());
}

bool is_plain(const LinearMap& map) { return is_plain(map.weight) && is_plain(map.bias); }

cpu::FewRowsMatrix matrix(const LinearMap& map, float* y, const float* add = nullptr) {
  return {.weight = data_of(map.weight),
          .bias = data_of(map.bias),
          .add = add,
          .y = y,
          .outputs = map.weight.size(0)};
}

/// The buffers of one call, taken from one allocation.
class Scratch {
 public:
  explicit Scratch(int64_t floats)
      : memory_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(floats))),
        next_(memory_.get()) {}
  float* take(int64_t floats) { return std::exchange(next_, next_ + floats); }

 private:
  std::unique_ptr<float[]> memory_;
  float* next_;
};

/// One call of token_layer: `rows` tokens, one for each sequence of the batch.
struct Run {
  const TokenLayer& layer;
  const TokenPast& past;
  const TokenAttention& a = layer.attention;
  int64_t rows, width;

  int64_t query_width() const { return a.query_heads * a.head_dim; }
  int64_t key_width() const { return a.key_heads * a.head_dim; }
  int64_t values_width() const { return a.kv_heads * a.value_dim; }
  int64_t out_width() const { return a.heads * a.value_dim; }
  int64_t inner() const { return layer.gate.weight.size(0); }

  void run(const float* x, float* y) const {
    Scratch scratch(rows * (2 * width + 2 * query_width() + key_width() + values_width() +
                            out_width() + 3 * inner() + 1));
    float *normed = scratch.take(rows * width), *h = scratch.take(rows * width);
    float* rstd = scratch.take(rows);
    float *q = scratch.take(rows * query_width()), *rotated = scratch.take(rows * query_width());
    float *k = scratch.take(rows * key_width()), *v = scratch.take(rows * values_width());
    float* heads = scratch.take(rows * out_width());
    float *gate = scratch.take(rows * inner()), *up = scratch.take(rows * inner());
    float* gated = scratch.take(rows * inner());

    norm(x, layer.input_norm, normed, rstd);
    products<3>(normed, width, {matrix(a.q, q), matrix(a.k, k), matrix(a.v, v)});
    for (int64_t b = 0; b < rows; ++b) {
      rotate(q + b * query_width(), a.query_heads, b, rotated + b * query_width());
      rotate(k + b * key_width(), a.key_heads, b, key_row(b));
      write_values(v + b * values_width(), b);
    }
    attend(rotated, heads);
    products<1>(heads, out_width(), {matrix(a.out, h, x)});
    norm(h, layer.post_norm, normed, rstd);
    products<2>(normed, width, {matrix(layer.gate, gate), matrix(layer.up, up)});
    cpu::swiglu(gate, up, gated, rows * inner());
    products<1>(gated, inner(), {matrix(layer.down, y, h)});
  }

 private:
  template <size_t kCount>
  void products(const float* x, int64_t from,
                const std::array<cpu::FewRowsMatrix, kCount>& matrices) const {
    cpu::few_rows({.x = x, .rows = rows, .width = from, .matrices = matrices});
  }

  void norm(const float* x, const Tensor& weight, float* y, float* rstd) const {
    cpu::rms_norm({.x = x,
                   .weight = data_of(weight),
                   .y = y,
                   .rstd = rstd,
                   .rows = rows,
                   .width = width,
                   .eps = static_cast<float>(layer.norm_eps)});
  }

  /// Rotates heads x [count, D] of row b by the angles of its token.
  void rotate(const float* x, int64_t count, int64_t b, float* y) const {
    if (!past.cos.defined()) {
      std::copy(x, x + count * a.head_dim, y);
      return;
    }
    const int64_t half = past.rotation.width / 2, angles = past.cos.numel() / half;
    const int64_t at = angles == 1 ? 0 : b * half;
    cpu::rotate({.x = x,
                 .y = y,
                 .cos = data_of(past.cos) + at,
                 .sin = data_of(past.sin) + at,
                 .tokens = 1,
                 .heads = count,
                 .dim = a.head_dim,
                 .width = past.rotation.width,
                 .table_rows = 1,
                 .token_stride = count * a.head_dim,
                 .head_stride = a.head_dim,
                 .interleaved = past.rotation.interleaved,
                 .direction = static_cast<float>(past.rotation.direction)});
  }

  float* key_row(int64_t b) const {
    return past.keys.mutable_data_ptr<float>() + b * past.keys.stride(0) +
           past.length * past.keys.stride(1);
  }

  /// Writes v, in the order (half, head, d) or (head, half, d), to the cache as (head, half, d).
  void write_values(const float* v, int64_t b) const {
    float* to = past.values.mutable_data_ptr<float>() + b * past.values.stride(0) +
                past.length * past.values.stride(1);
    if (!a.halves || a.value_dim != 2 * a.head_dim) {
      std::copy(v, v + values_width(), to);
      return;
    }
    for (int64_t head = 0; head < a.kv_heads; ++head) {
      for (int64_t side = 0; side < 2; ++side) {
        const float* from = v + (side * a.kv_heads + head) * a.head_dim;
        std::copy(from, from + a.head_dim, to + (2 * head + side) * a.head_dim);
      }
    }
  }

  /// Offset from the first to the second sub-head of a pair, and stride from pair to pair.
  struct Pairing {
    int64_t second, stride;
  };
  Pairing pairing(int64_t count, int64_t wanted) const {
    if (count == wanted) return {0, a.head_dim};
    return a.halves ? Pairing{wanted * a.head_dim, a.head_dim}
                    : Pairing{a.head_dim, 2 * a.head_dim};
  }

  void attend(const float* q, float* out) const {
    ForwardParams p;
    p.batch = rows;
    p.heads = a.heads;
    p.kv_heads = a.kv_heads;
    p.seq_q = 1;
    p.seq_k = past.length + 1;
    p.head_dim = a.head_dim;
    p.value_dim = a.value_dim;
    const Pairing queries = pairing(a.query_heads, a.heads),
                  keys = pairing(a.key_heads, a.kv_heads);
    const float* k = data_of(past.keys);
    const auto query_view = [&](const float* from) {
      return View<const void>{from, query_width(), query_width(), queries.stride};
    };
    const auto key_view = [&](const float* from) {
      return View<const void>{from, past.keys.stride(0), past.keys.stride(1), keys.stride};
    };
    p.q1 = query_view(q);
    p.q2 = query_view(q + queries.second);
    p.k1 = key_view(k);
    p.k2 = key_view(k + keys.second);
    p.v = {data_of(past.values), past.values.stride(0), past.values.stride(1), a.value_dim};
    const float lambda = static_cast<float>(a.lambda);
    p.lambda = {&lambda, 0, 0, 0};
    p.scale = p.scale2 = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
    p.causal = true;
    if (past.window) p.window = Window::last(*past.window);
    const Tensor starts =
        past.key_starts ? ops::host_index("key_starts", *past.key_starts) : Tensor();
    if (starts.defined()) p.key_starts = starts.const_data_ptr<int32_t>();
    p.epilogue = {.norm = a.norm_eps.has_value(),
                  .norm_eps = a.norm_eps.value_or(0.0),
                  .norm_weight = data_of(a.norm_weight),
                  .out_scale = a.out_scale};
    p.out = {out, out_width(), out_width(), a.value_dim};
    ops::cpu_backend_or_composed(p)->forward(p);
  }
};

}  // namespace

bool takes_token(const Tensor& x, const TokenLayer& layer) {
  const TokenAttention& a = layer.attention;
  if (torch::GradMode::is_enabled() || ops::backend_limit() == ops::kComposed) return false;
  if (x.dim() != 3 || x.size(1) != 1 || x.size(0) < 1 || x.size(0) > ops::kFewRows) return false;
  if (a.q.weight.size(1) != x.size(2)) return false;
  return is_plain(x) && is_plain(layer.input_norm) && is_plain(layer.post_norm) && is_plain(a.q) &&
         is_plain(a.k) && is_plain(a.v) && is_plain(a.out) && is_plain(a.norm_weight) &&
         is_plain(layer.gate) && is_plain(layer.up) && is_plain(layer.down);
}

Tensor token_layer(const Tensor& x, const TokenLayer& layer, const TokenPast& past) {
  const int64_t half = past.rotation.width / 2;
  TORCH_CHECK(
      !past.cos.defined() || ((past.cos.numel() == half || past.cos.numel() == x.size(0) * half) &&
                              past.cos.sizes() == past.sin.sizes()),
      "token_layer: cos and sin: expected a row of ", half,
      " for all tokens or one for each of the ", x.size(0), ", got ", past.cos.sizes(), " and ",
      past.sin.sizes());
  const Tensor y = torch::empty(x.sizes(), x.options());
  Run{.layer = layer, .past = past, .rows = x.size(0), .width = x.size(2)}.run(
      x.const_data_ptr<float>(), y.mutable_data_ptr<float>());
  return y;
}

}  // namespace diffattn
