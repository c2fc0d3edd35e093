// SPDX-License-Identifier: Apache-2.0
#include "nn/parts/map_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nn/attention/text_rows.h"
#include "nn/routes/visible.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Compute = std::function<Tensor(const RowBlock&)>;

torch::ScalarType sum_type(const Tensor& t) {
  return t.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Converts [B, L, Hkv, W] to [B, H, L, W] in float32 (float64).
Tensor heads_first(const Tensor& t, int64_t heads) {
  const Tensor wide = t.to(sum_type(t)).transpose(1, 2);
  const int64_t group = heads / std::max<int64_t>(1, wide.size(1));
  return group == 1 ? wide : wide.repeat_interleave(group, 1);
}

/// Returns rows [begin, begin + count) of a mask, with four axes.
Tensor mask_rows(Tensor mask, int64_t begin, int64_t count) {
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  return mask.size(2) > 1 ? mask.narrow(2, begin, count) : mask;
}

/// Returns which columns each row sees; broadcasts to [B, H, count, N].
Tensor visible_rows(const HeadTensors& h, int64_t begin, int64_t count) {
  const AttentionOptions& options = h.options;
  const int64_t seq_q = h.q1.size(1), seq_k = h.k1.size(1);
  const auto integers = h.q1.options().dtype(torch::kLong);
  const Tensor n = torch::arange(seq_k, integers).view({1, 1, 1, -1});
  const Tensor aligned =  // m' = m + N - M
      (torch::arange(begin, begin + count, integers) + seq_k - seq_q).view({1, 1, -1, 1});
  Tensor visible = torch::ones({1, 1, count, seq_k}, h.q1.options().dtype(torch::kBool));
  const Window bounds = options.bounds();
  if (bounds.right != kNoBound) visible = visible & (n <= aligned + bounds.right);
  if (bounds.left != kNoBound) visible = visible & (n >= aligned - bounds.left);
  if (options.key_starts()) visible = visible & (n >= per_batch(*options.key_starts()));
  if (options.key_lengths()) visible = visible & (n < per_batch(*options.key_lengths()));
  if (!options.mask()) return visible;
  const Tensor mask = mask_rows(options.mask()->detach(), begin, count);
  return visible & (mask.scalar_type() == torch::kBool ? mask : mask != -INFINITY);
}

Tensor lambda_rows(const HeadTensors& h, int64_t begin, int64_t count) {
  const Tensor lambda = h.lambda.to(sum_type(h.q1));
  if (lambda.dim() == 3) return lambda.narrow(1, begin, count).transpose(1, 2).unsqueeze(-1);
  return lambda.view({1, -1, 1, 1});
}

/// True if some row may see no column. Looks at shapes and options only.
bool may_see_nothing(const HeadTensors& h) {
  const AttentionOptions& o = h.options;
  return o.mask() || o.key_starts() || o.key_lengths() || o.bounds().left != kNoBound ||
         h.q1.size(1) > h.k1.size(1);
}

/// Returns the softmax over visible columns. A row that sees no column keeps its finite scores
/// until it becomes 0, so that its gradient is 0 and not NaN.
Tensor masked_softmax(const Tensor& scores, const Tensor& visible, bool empty_rows) {
  if (!empty_rows) return scores.masked_fill(~visible, -INFINITY).softmax(-1);
  const Tensor sees_none = ~visible.any(-1, /*keepdim=*/true);
  return scores.masked_fill(~(visible | sees_none), -INFINITY)
      .softmax(-1)
      .masked_fill(sees_none, 0.0);
}

HeadTensors with(const HeadTensors& h, const variable_list& t) {
  HeadTensors result = h;
  result.q1 = t[0], result.q2 = t[1], result.k1 = t[2], result.k2 = t[3], result.v = t[4];
  result.lambda = t[5];
  return result;
}

/// Applies `compute` to one block, without autocast.
Tensor run_block(const Compute& compute, const HeadTensors& h, int64_t begin, int64_t count) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return compute({map_rows(h, begin, count), heads_first(h.v, h.q1.size(2)), begin});
}

class RowBlocks : public torch::autograd::Function<RowBlocks> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q1, const Tensor& q2, const Tensor& k1,
                        const Tensor& k2, const Tensor& v, const Tensor& lambda,
                        const HeadTensors& heads, Join join, const Compute& compute, int64_t rows) {
    ctx->save_for_backward({q1, q2, k1, k2, v, lambda});
    backward_state(ctx, heads, join, compute, rows);
    std::vector<Tensor> parts;
    for (int64_t begin = 0; begin == 0 || begin < q1.size(1); begin += rows) {
      const Tensor part = run_block(compute, heads, begin, std::min(rows, q1.size(1) - begin));
      if (join == Join::kSum && !parts.empty()) {
        parts[0] += part;
      } else {
        parts.push_back(part);
      }
    }
    return join == Join::kSum ? parts.at(0) : torch::cat(parts, 2);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    constexpr size_t kTensors = 6, kArguments = 10;
    const State& state = *static_cast<State*>(ctx->saved_data["state"].toCapsule().get());
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(kArguments);
    for (int64_t begin = 0; begin < saved[0].size(1); begin += state.rows) {
      const int64_t count = std::min(state.rows, saved[0].size(1) - begin);
      const torch::AutoGradMode enable(true);
      variable_list leaves, wanted;
      for (size_t i = 0; i < kTensors; ++i) {
        leaves.push_back(saved[i].detach().requires_grad_(ctx->needs_input_grad(i)));
        if (leaves[i].requires_grad()) wanted.push_back(leaves[i]);
      }
      const Tensor out = run_block(state.compute, with(state.heads, leaves), begin, count);
      const Tensor grad = state.join == Join::kSum ? grads[0] : grads[0].narrow(2, begin, count);
      const variable_list found =
          torch::autograd::grad({out}, wanted, {grad}, /*retain_graph=*/false,
                                /*create_graph=*/false, /*allow_unused=*/true);
      for (size_t i = 0, next = 0; i < kTensors; ++i) {
        if (!leaves[i].requires_grad()) continue;
        const Tensor& part = found[next++];
        if (part.defined()) result[i] = result[i].defined() ? result[i] + part : part;
      }
    }
    return result;
  }

 private:
  struct State : torch::CustomClassHolder {
    HeadTensors heads;
    Join join;
    Compute compute;
    int64_t rows;
  };

  static void backward_state(AutogradContext* ctx, const HeadTensors& heads, Join join,
                             const Compute& compute, int64_t rows) {
    auto state = c10::make_intrusive<State>();
    state->heads = with(heads, variable_list(6));  // autograd saves these six tensors
    state->join = join;
    state->compute = compute;
    state->rows = rows;
    ctx->saved_data["state"] = c10::IValue::make_capsule(std::move(state));
  }
};

}  // namespace

std::vector<HeadTensors> sequences(const HeadTensors& heads) {
  if (!heads.options.cu_seqlens_q()) return {heads};
  const Tensor offsets_q = heads.options.cu_seqlens_q()->to(torch::kCPU, torch::kLong);
  const Tensor offsets_k = heads.options.cu_seqlens_k()->to(torch::kCPU, torch::kLong);
  std::vector<HeadTensors> result;
  for (int64_t b = 0; b + 1 < offsets_q.numel(); ++b) {
    result.push_back(sequence(heads, offsets_q, offsets_k, b));
  }
  return result;
}

Tensor real_rows(const HeadTensors& h) {
  const auto& starts = h.options.key_starts();
  const auto& lengths = h.options.key_lengths();
  if (!starts && !lengths) return {};
  const int64_t seq_q = h.q1.size(1), seq_k = h.k1.size(1);
  const Tensor aligned =
      torch::arange(seq_k - seq_q, seq_k, h.q1.options().dtype(torch::kLong)).unsqueeze(0);
  Tensor real = torch::ones({h.q1.size(0), seq_q}, h.q1.options().dtype(torch::kBool));
  if (starts) real = real & (aligned >= starts->to(aligned.options()).unsqueeze(1));
  if (lengths) real = real & (aligned < lengths->to(aligned.options()).unsqueeze(1));
  return real;
}

std::optional<Tensor> text_rows(const HeadTensors& call, const std::optional<Tensor>& row_lengths) {
  if (call.q1.dim() != 4) return {};
  const int64_t rows = call.q1.size(1);
  if (row_lengths) {
    const Tensor lengths = row_lengths->to(call.q1.device(), torch::kLong);
    return torch::arange(rows, lengths.options()) < lengths.unsqueeze(1);
  }
  const Tensor real = rows == call.k1.size(1) ? real_rows(call) : Tensor();
  return real.defined() ? std::optional(real) : std::nullopt;
}

Tensor map_rows(const HeadTensors& h, int64_t begin, int64_t count) {
  const int64_t heads = h.q1.size(2);
  const bool empty_rows = may_see_nothing(h), restricted = empty_rows || h.options.causal();
  const Tensor visible = restricted ? visible_rows(h, begin, count) : Tensor();
  const double scale =
      h.options.scale().value_or(1.0 / std::sqrt(static_cast<double>(h.q1.size(3))));
  const auto softmax = [&](const Tensor& q, const Tensor& k, double factor) {
    const Tensor rows = heads_first(q.narrow(1, begin, count), heads) * factor;
    Tensor scores = rows.matmul(heads_first(k, heads).transpose(-1, -2));
    if (h.options.mask() && h.options.mask()->scalar_type() != torch::kBool) {
      const Tensor bias = mask_rows(h.options.mask()->detach(), begin, count);
      scores = scores + bias.masked_fill(bias == -INFINITY, 0.0);  // `visible` hides those
    }
    return restricted ? masked_softmax(scores, visible, empty_rows) : scores.softmax(-1);
  };
  const Tensor p1 = softmax(h.q1, h.k1, scale);
  if (h.single_map) return p1;
  return p1 -
         lambda_rows(h, begin, count) * softmax(h.q2, h.k2, h.options.scale2().value_or(scale));
}

Tensor over_row_blocks(const HeadTensors& h, Join join, const Compute& compute,
                       int64_t block_bytes) {
  const int64_t row_bytes = h.q1.size(0) * h.q1.size(2) * h.k1.size(1) *
                            static_cast<int64_t>(elementSize(sum_type(h.q1)));
  const int64_t rows = std::max<int64_t>(1, block_bytes / std::max<int64_t>(1, row_bytes));
  return RowBlocks::apply(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h, join, compute, rows);
}

}  // namespace diffattn::nn
