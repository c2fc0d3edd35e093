// SPDX-License-Identifier: Apache-2.0
#include "diffattn/ops_layers.h"

#include <utility>

#include "diffattn/kernels/error.h"
#include "kernels/layers.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using LayerContext = torch::autograd::AutogradContext;
using LayerGradients = torch::autograd::variable_list;
using ops::is_aligned;
using ops::is_for_gpu;
using ops::is_whole_for_gpu;
using torch::Tensor;

bool is_host_float(const Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == torch::kFloat32 && x.numel() > 0;
}

/// Returns y and, for the backward pass, rstd. x and weight must be contiguous.
std::pair<Tensor, Tensor> normed(const Tensor& x, const Tensor& weight, double eps) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const Tensor y = torch::empty_like(x), rstd = torch::empty({rows}, x.options());
  cpu::rms_norm({.x = x.const_data_ptr<float>(),
                 .weight = weight.defined() ? weight.const_data_ptr<float>() : nullptr,
                 .y = y.mutable_data_ptr<float>(),
                 .rstd = rstd.mutable_data_ptr<float>(),
                 .rows = rows,
                 .width = width,
                 .eps = static_cast<float>(eps)});
  return {y, rstd};
}

class FusedRmsNorm : public torch::autograd::Function<FusedRmsNorm> {
 public:
  static Tensor forward(LayerContext* ctx, const Tensor& given, const std::optional<Tensor>& weight,
                        double eps) {
    const Tensor x = given.contiguous();
    const Tensor w = weight ? weight->contiguous() : Tensor();
    const auto [y, rstd] = normed(x, w, eps);
    ctx->save_for_backward({x, w, rstd});
    return y;
  }

  static LayerGradients backward(LayerContext* ctx, const LayerGradients& grads) {
    ops::refuse_second_derivative("rms_norm");
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], dy = grads[0].contiguous();
    const Tensor dx = torch::empty_like(x);
    const Tensor dweight = w.defined() ? torch::empty_like(w) : Tensor();
    cpu::rms_norm_backward({.dy = dy.const_data_ptr<float>(),
                            .x = x.const_data_ptr<float>(),
                            .weight = w.defined() ? w.const_data_ptr<float>() : nullptr,
                            .rstd = saved[2].const_data_ptr<float>(),
                            .dx = dx.mutable_data_ptr<float>(),
                            .dweight = w.defined() ? dweight.mutable_data_ptr<float>() : nullptr,
                            .rows = saved[2].numel(),
                            .width = x.size(-1)});
    return {dx, dweight, Tensor()};
  }
};

/// Returns silu(gate) * up. Both tensors must be contiguous.
Tensor gated(const Tensor& gate, const Tensor& up) {
  const Tensor y = torch::empty_like(gate);
  if (gate.device().is_cuda()) {
    ops::cuda_layers()->swiglu(gate.flatten(), up.flatten(), y);
  } else {
    cpu::swiglu(gate.const_data_ptr<float>(), up.const_data_ptr<float>(),
                y.mutable_data_ptr<float>(), gate.numel());
  }
  return y;
}

/// True if autograd records a graph. Without one, we skip the cost of torch::autograd::Function.
bool makes_graph(const Tensor& a, const Tensor& b) {
  return torch::GradMode::is_enabled() && (a.requires_grad() || (b.defined() && b.requires_grad()));
}

class FusedSwiglu : public torch::autograd::Function<FusedSwiglu> {
 public:
  static Tensor forward(LayerContext* ctx, const Tensor& given_gate, const Tensor& given_up) {
    const Tensor gate = given_gate.contiguous(), up = given_up.contiguous();
    ctx->save_for_backward({gate, up});
    return gated(gate, up);
  }

  static LayerGradients backward(LayerContext* ctx, const LayerGradients& grads) {
    ops::refuse_second_derivative("swiglu");
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    const Tensor dgate = torch::empty_like(saved[0]), dup = torch::empty_like(saved[1]);
    if (dy.device().is_cuda()) {
      ops::cuda_layers()->swiglu_backward(is_aligned(dy) ? dy : dy.clone(), saved[0].flatten(),
                                          saved[1].flatten(), dgate, dup);
      return {dgate, dup};
    }
    cpu::swiglu_backward(dy.const_data_ptr<float>(), saved[0].const_data_ptr<float>(),
                         saved[1].const_data_ptr<float>(), dgate.mutable_data_ptr<float>(),
                         dup.mutable_data_ptr<float>(), dy.numel());
    return {dgate, dup};
  }
};

/// Returns the first and the second elements of all rotated pairs, as views [..., width / 2].
std::pair<Tensor, Tensor> rotated_pairs(const Tensor& heads, const RotateOptions& o) {
  const Tensor x = heads.slice(-1, 0, o.width);
  if (o.interleaved) return {x.slice(-1, 0, o.width, 2), x.slice(-1, 1, o.width, 2)};
  return {x.slice(-1, 0, o.width / 2), x.slice(-1, o.width / 2)};
}

Tensor rotated_by_torch(const Tensor& heads, const Tensor& cos, const Tensor& sin,
                        const RotateOptions& o) {
  Tensor out = torch::empty(heads.sizes(), heads.options());
  const Tensor c = cos.unsqueeze(-2), s = sin.unsqueeze(-2);  // the same for every head
  const auto [a, b] = rotated_pairs(heads, o);
  auto [out_a, out_b] = rotated_pairs(out, o);
  // The arithmetic has the type of cos and sin, with one rounding at the end.
  at::addcmul_out(out_a, a * c, b, s, -o.direction);
  at::addcmul_out(out_b, b * c, a, s, o.direction);
  if (o.width < heads.size(-1)) out.slice(-1, o.width).copy_(heads.slice(-1, o.width));
  return out;
}

/// True if all tokens of [B, N, H, D] are the same number of elements apart, across sequences too.
bool has_token_stride(const Tensor& heads) {
  return heads.stride(-1) == 1 && (heads.dim() == 3 || heads.size(0) == 1 ||
                                   heads.stride(0) == heads.size(1) * heads.stride(1));
}

bool is_rotated_on_gpu(const Tensor& heads, const Tensor& cos, const RotateOptions& o) {
  return is_for_gpu(heads) && cos.scalar_type() == torch::kFloat32 && !o.interleaved &&
         o.width == heads.size(-1) && o.width % 8 == 0 && has_token_stride(heads) &&
         heads.stride(-2) % 4 == 0 && heads.stride(-3) % 4 == 0 && is_aligned(heads);
}

Tensor rotated(const Tensor& given, const Tensor& cos, const Tensor& sin, const RotateOptions& o) {
  if (is_rotated_on_gpu(given, cos, o)) {
    const Tensor out = torch::empty(given.sizes(), given.options());
    const Tensor c = is_aligned(cos) ? cos.contiguous() : cos.clone(at::MemoryFormat::Contiguous);
    const Tensor s = is_aligned(sin) ? sin.contiguous() : sin.clone(at::MemoryFormat::Contiguous);
    ops::cuda_layers()->move_heads({given}, {out}, /*rotated=*/1, c, s, o.direction);
    return out;
  }
  if (!is_host_float(given) || cos.scalar_type() != torch::kFloat32) {
    return rotated_by_torch(given, cos, sin, o);
  }
  const Tensor heads = has_token_stride(given) ? given : given.contiguous();
  const Tensor c = cos.contiguous(), s = sin.contiguous();
  const Tensor out = torch::empty(heads.sizes(), heads.options());
  cpu::rotate({.x = heads.const_data_ptr<float>(),
               .y = out.mutable_data_ptr<float>(),
               .cos = c.const_data_ptr<float>(),
               .sin = s.const_data_ptr<float>(),
               .tokens = heads.numel() / (heads.size(-2) * heads.size(-1)),
               .heads = heads.size(-2),
               .dim = heads.size(-1),
               .width = o.width,
               .table_rows = c.numel() / (o.width / 2),
               .token_stride = heads.stride(-3),
               .head_stride = heads.stride(-2),
               .interleaved = o.interleaved,
               .direction = static_cast<float>(o.direction)});
  return out;
}

void check_rotation(const Tensor& heads, const Tensor& cos, const Tensor& sin,
                    const RotateOptions& o) {
  if (heads.dim() != 3 && heads.dim() != 4) {
    throw_argument_error("rotate.heads", "[B, N, H, D] or [total, H, D]", c10::str(heads.sizes()));
  }
  if (o.width <= 0 || o.width % 2 != 0 || o.width > heads.size(-1)) {
    throw_argument_error("rotate.width", c10::str("an even number from 2 to ", heads.size(-1)),
                         c10::str(o.width));
  }
  for (const Tensor& table : {cos, sin}) {
    if (table.device() != heads.device()) {
      throw_argument_error("rotate.cos, rotate.sin", c10::str("tensors on ", heads.device()),
                           c10::str("one on ", table.device()));
    }
  }
  if (cos.sizes() != sin.sizes() || cos.scalar_type() != sin.scalar_type()) {
    throw_argument_error("rotate.sin", c10::str(cos.sizes(), " ", cos.scalar_type(), ", like cos"),
                         c10::str(sin.sizes(), " ", sin.scalar_type()));
  }
  const auto rows = cos.sizes().slice(0, cos.dim() > 0 ? cos.dim() - 1 : 0);
  const bool shared = heads.dim() == 4 && rows == heads.sizes().slice(1, 1);
  if (cos.dim() > 0 && cos.size(-1) == o.width / 2 &&
      (shared || rows == heads.sizes().slice(0, heads.dim() - 2))) {
    return;
  }
  throw_argument_error(
      "rotate.cos", c10::str("a row of ", o.width / 2, " for each token of heads ", heads.sizes()),
      c10::str(cos.sizes()));
}

/// Rotates heads. The backward pass rotates by the negative angle, so it needs only cos and sin.
class Rotation : public torch::autograd::Function<Rotation> {
 public:
  static Tensor forward(LayerContext* ctx, const Tensor& heads, const Tensor& cos,
                        const Tensor& sin, const RotateOptions& options) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["width"] = options.width;
    ctx->saved_data["interleaved"] = options.interleaved;
    ctx->saved_data["direction"] = options.direction;
    return rotated(heads, cos, sin, options);
  }

  static LayerGradients backward(LayerContext* ctx, const LayerGradients& grads) {
    const auto saved = ctx->get_saved_variables();
    const RotateOptions back{ctx->saved_data["width"].toInt(),
                             ctx->saved_data["interleaved"].toBool(),
                             -ctx->saved_data["direction"].toDouble()};
    return {Rotation::apply(grads[0], saved[0], saved[1], back), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (x.dim() == 0) throw_argument_error("rms_norm.x", "at least one axis", "a number");
  if (weight.defined() &&
      (weight.dim() != 1 || weight.size(0) != x.size(-1) || weight.device() != x.device())) {
    throw_argument_error("rms_norm.weight", c10::str("[", x.size(-1), "] on ", x.device()),
                         c10::str(weight.sizes(), " on ", weight.device()));
  }
  const auto w = weight.defined() ? std::optional(weight) : std::nullopt;
  if (is_host_float(x) && (!w || w->scalar_type() == torch::kFloat32)) {
    if (makes_graph(x, weight)) return FusedRmsNorm::apply(x, w, eps);
    return normed(x.contiguous(), w ? w->contiguous() : Tensor(), eps).first;
  }
  return torch::rms_norm(x, {x.size(-1)}, w, eps);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  if (gate.sizes() != up.sizes()) {
    throw_argument_error("swiglu.up", c10::str(gate.sizes(), ", like gate"), c10::str(up.sizes()));
  }
  const bool alike = gate.scalar_type() == up.scalar_type();
  const bool on_host = is_host_float(gate) && is_host_float(up);
  if (alike && (on_host || (is_whole_for_gpu(gate) && is_whole_for_gpu(up)))) {
    if (makes_graph(gate, up)) return FusedSwiglu::apply(gate, up);
    return gated(gate.contiguous(), up.contiguous());
  }
  return torch::silu(gate) * up;
}

Tensor rotate(const Tensor& heads, const Tensor& cos, const Tensor& sin,
              const RotateOptions& options) {
  check_rotation(heads, cos, sin, options);
  if (!makes_graph(heads, Tensor())) return rotated(heads, cos, sin, options);
  return Rotation::apply(heads, cos, sin, options);
}

// The operators for Python. `rotate` rotates whole heads, in pairs (i, i + D / 2).
TORCH_LIBRARY_FRAGMENT(diffattn, m) {
  m.def("rotate(Tensor heads, Tensor cos, Tensor sin) -> Tensor",
        [](const Tensor& heads, const Tensor& cos, const Tensor& sin) {
          return rotate(heads, cos, sin, {.width = heads.size(-1)});
        });
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
        [](const Tensor& x, const Tensor& weight, double eps) { return rms_norm(x, weight, eps); });
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor",
        [](const Tensor& gate, const Tensor& up) { return swiglu(gate, up); });
}

}  // namespace diffattn
