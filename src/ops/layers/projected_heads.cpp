// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/projected_heads.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "diffattn/ops_layers.h"
#include "ops/layers/joined_rows.h"
#include "ops/layers/layers.h"

namespace diffattn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The layout of a call's results. The graph owns it.
struct Layout : torch::CustomClassHolder {
  std::vector<HeadColumns> parts;
  std::vector<int64_t> leading;  // sizes of x without the last
  int64_t q_rows = 0, k_rows = 0, head_dim = 0;
  bool joins_value_halves = false;

  bool is_rotated(const HeadColumns& part) const { return part.column < q_rows + k_rows; }
};

// --- The matrix ----------------------------------------------------------------------------------

/// Copies matrices as blocks of `rows` rows. from[i] and to[i] are [n, blocks, rows * E], with any
/// strides but the last.
void move_blocks(const std::vector<Tensor>& from, const std::vector<Tensor>& to) {
  const bool moves = std::ranges::all_of(from, ops::is_for_gpu) &&
                     std::ranges::all_of(from, ops::is_aligned) &&
                     std::ranges::all_of(to, ops::is_aligned) && from.front().size(-1) % 16 == 0;
  if (moves) return ops::cuda_layers()->move_heads(from, to, /*rotated=*/0, {}, {}, 1.0);
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

/// Views rows (head, half, d) of a matrix as the blocks [heads, 1, d E] of one half.
Tensor joined_half(const Tensor& v, int64_t half, int64_t head_dim) {
  return v.view({-1, 2, head_dim * v.size(1)}).narrow(1, half, 1);
}

/// Views rows (half, head, d) of a matrix as the blocks [heads, 1, d E] of one half.
Tensor separate_half(const Tensor& v, int64_t half, int64_t head_dim) {
  return v.view({2, -1, 1, head_dim * v.size(1)}).select(0, half);
}

/// Returns [q; k; v] with the rows of v in the order of the product's columns.
Tensor joined_weights(const Tensor& q, const Tensor& k, const Tensor& v, const Layout& layout) {
  if (!layout.joins_value_halves) return ops::joined_rows({q, k, v});
  const int64_t width = q.size(1), dim = layout.head_dim, heads = v.size(0) / (2 * dim);
  const Tensor whole = torch::empty({q.size(0) + k.size(0) + v.size(0), width}, q.options());
  const Tensor new_v = whole.slice(0, q.size(0) + k.size(0));
  const auto blocks = [&](const Tensor& rows) { return rows.view({heads, -1, dim * width}); };
  move_blocks({blocks(q), blocks(k), separate_half(v, 0, dim), separate_half(v, 1, dim)},
              {blocks(whole.slice(0, 0, q.size(0))),
               blocks(whole.slice(0, q.size(0), q.size(0) + k.size(0))), joined_half(new_v, 0, dim),
               joined_half(new_v, 1, dim)});
  return whole;
}

/// Returns the gradient of v from its rows in the order of the product's columns.
Tensor value_gradient(const Tensor& rows, const Layout& layout) {
  if (!layout.joins_value_halves) return rows;
  const int64_t dim = layout.head_dim;
  const Tensor dv = torch::empty_like(rows);
  move_blocks({joined_half(rows, 0, dim), joined_half(rows, 1, dim)},
              {separate_half(dv, 0, dim), separate_half(dv, 1, dim)});
  return dv;
}

// --- The heads -----------------------------------------------------------------------------------

/// Views the heads of a part in a product [T, columns], as [leading..., heads, dim].
Tensor heads_of(const Tensor& product, const HeadColumns& part, at::IntArrayRef leading) {
  std::vector<int64_t> sizes = leading.vec(), strides(leading.size());
  int64_t stride = product.stride(0);
  for (size_t i = leading.size(); i-- > 0; stride *= leading[i]) strides[i] = stride;
  sizes.insert(sizes.end(), {part.heads, part.dim});
  strides.insert(strides.end(), {part.head_stride, 1});
  return product.as_strided(sizes, strides, product.storage_offset() + part.column);
}

/// True if the CUDA kernel can read or write the heads.
bool can_move(const Tensor& heads) {
  const bool one_stride =
      heads.dim() == 3 || heads.size(0) == 1 || heads.stride(0) == heads.size(1) * heads.stride(1);
  return ops::is_for_gpu(heads) && heads.size(-1) % 8 == 0 && one_stride && heads.stride(-1) == 1 &&
         heads.stride(-2) % 4 == 0 && heads.stride(-3) % 4 == 0 && ops::is_aligned(heads);
}

/// True if the CUDA kernel can read a table of angles, or if there is none.
bool can_read_table(const Tensor& table) {
  return !table.defined() || (table.scalar_type() == torch::kFloat32 && table.is_contiguous() &&
                              ops::is_aligned(table));
}

/// Moves heads from[i] to to[i]; the first `rotated` of them rotate.
void move_heads(std::vector<Tensor> from, const std::vector<Tensor>& to, int64_t rotated,
                const Tensor& cos, const Tensor& sin, double direction) {
  if (std::ranges::all_of(to, can_move) && can_read_table(cos) && can_read_table(sin)) {
    for (Tensor& heads : from) heads = can_move(heads) ? heads : heads.contiguous();
    return ops::cuda_layers()->move_heads(from, to, rotated, cos, sin, direction);
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const bool rotates = static_cast<int64_t>(i) < rotated;
    const RotateOptions options{.width = from[i].size(-1), .direction = direction};
    to[i].copy_(rotates ? rotate(from[i], cos, sin, options) : from[i]);
  }
}

/// Divides unrotated heads, which lie side by side, into heads of width `dim`.
HeadColumns divided(const HeadColumns& part, int64_t dim) {
  if (part.dim == dim || part.dim % dim != 0 || part.head_stride != part.dim) return part;
  return {part.column, part.heads * (part.dim / dim), dim, dim};
}

/// Writes the gradients of all parts to the gradient of the product.
void gather_gradients(const variable_list& grads, const Layout& layout, const Tensor& cos,
                      const Tensor& sin, const Tensor& dproduct) {
  std::vector<Tensor> from, to;
  int64_t rotated = 0;
  for (size_t i = 0; i < grads.size(); ++i) {
    const HeadColumns part = divided(layout.parts[i], layout.head_dim);
    const Tensor target = heads_of(dproduct, part, layout.leading);
    if (!grads[i].defined()) {
      target.zero_();
    } else if (part.dim != layout.head_dim) {
      target.copy_(grads[i]);
    } else {
      from.push_back(grads[i].reshape(target.sizes()));
      to.push_back(target);
      rotated += cos.defined() && layout.is_rotated(part) ? 1 : 0;
    }
  }
  if (!from.empty()) move_heads(std::move(from), to, rotated, cos, sin, -1.0);
}

class ProjectedHeads : public torch::autograd::Function<ProjectedHeads> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& q,
                               const Tensor& k, const Tensor& v,
                               const std::optional<Tensor>& given_cos,
                               const std::optional<Tensor>& given_sin,
                               const c10::intrusive_ptr<Layout>& layout) {
    // Results share memory without being views of each other, so each has its own gradient.
    const at::AutoDispatchBelowADInplaceOrView below;
    const Tensor cos = given_cos.value_or(Tensor()), sin = given_sin.value_or(Tensor());
    const Tensor weight = joined_weights(q, k, v, *layout);
    const Tensor product = torch::mm(x.flatten(0, -2), weight.t());
    if (cos.defined()) {
      const int64_t dim = layout->head_dim, heads = (layout->q_rows + layout->k_rows) / dim;
      const Tensor all = heads_of(product, {0, heads, dim, dim}, layout->leading);
      move_heads({all}, {all}, /*rotated=*/1, cos, sin, 1.0);
    }
    variable_list results;
    for (const HeadColumns& part : layout->parts) {
      results.push_back(heads_of(product, part, layout->leading));
    }
    ctx->save_for_backward({x, weight, cos, sin});
    ctx->saved_data["layout"] = c10::IValue::make_capsule(layout);
    ctx->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    ops::refuse_second_derivative("projected_heads");
    const auto saved = ctx->get_saved_variables();
    const Tensor x = saved[0].flatten(0, -2);
    const Tensor& weight = saved[1];
    const auto layout =
        c10::static_intrusive_pointer_cast<Layout>(ctx->saved_data["layout"].toCapsule());
    const Tensor dproduct = torch::empty({x.size(0), weight.size(0)}, x.options());
    gather_gradients(grads, *layout, saved[2], saved[3], dproduct);
    const int64_t q_rows = layout->q_rows, k_rows = layout->k_rows;
    const Tensor dx = torch::mm(dproduct, weight).view_as(saved[0]);
    const Tensor dweight = torch::mm(dproduct.t(), x);
    return {dx,
            dweight.narrow(0, 0, q_rows),
            dweight.narrow(0, q_rows, k_rows),
            value_gradient(dweight.slice(0, q_rows + k_rows), *layout),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

bool takes_projected_heads(const Tensor& x, const ProjectionWeights& weights) {
  const auto fits = [&](const Tensor& t) {
    return t.device() == x.device() && t.scalar_type() == x.scalar_type() && t.is_contiguous() &&
           t.dim() >= 2 && t.size(-1) == x.size(-1);
  };
  const bool keeps_type = !at::autocast::is_autocast_enabled(at::kCUDA) ||
                          at::autocast::get_autocast_dtype(at::kCUDA) == x.scalar_type();
  return torch::GradMode::is_enabled() && ops::is_for_gpu(x) && keeps_type && fits(x) &&
         fits(weights.q) && fits(weights.k) && fits(weights.v);
}

std::vector<Tensor> projected_heads(const Tensor& x, const ProjectionWeights& weights,
                                    const ProjectionLayout& given) {
  int64_t covered = 0;
  for (const HeadColumns& part : given.parts) covered += part.heads * part.dim;
  const int64_t columns = weights.q.size(0) + weights.k.size(0) + weights.v.size(0);
  TORCH_CHECK(covered == columns, "projected_heads: parts: expected ", columns,
              " columns in all, got ", covered);
  auto layout = c10::make_intrusive<Layout>();
  layout->parts = given.parts;
  layout->leading = x.sizes().slice(0, x.dim() - 1).vec();
  layout->q_rows = weights.q.size(0);
  layout->k_rows = weights.k.size(0);
  layout->head_dim = given.head_dim;
  layout->joins_value_halves = given.joins_value_halves;
  const auto optional = [](const Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  };
  return ProjectedHeads::apply(x.contiguous(), weights.q, weights.k, weights.v, optional(given.cos),
                               optional(given.sin), layout);
}

}  // namespace diffattn
