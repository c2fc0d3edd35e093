// SPDX-License-Identifier: Apache-2.0
//
// Computes both maps in memory with ATen operators.

#include <algorithm>
#include <cmath>
#include <vector>

#include "diffattn/kernels/params.h"
#include "ops/composed/composed.h"
#include "ops/glue/problem_views.h"

namespace diffattn::ops::composed {
namespace {

using torch::indexing::Ellipsis;
using torch::indexing::Slice;

/// Both maps of a batch, [B, H, M, N] in the accumulator type; 0 at hidden columns.
struct Maps {
  Tensor p1, p2;
  Tensor visible;     // bool, broadcasts to [B, H, M, N]
  Tensor lse1, lse2;  // [B, H, M]; -inf for a row that sees no column
  Tensor lambda;      // broadcasts to [B, H, M, 1]

  Tensor difference() const { return p1 - lambda * p2; }
};

/// Converts [B, L, Hkv, W] to [B, H, L, W] in the accumulator type.
Tensor heads_first(const Tensor& t, int64_t heads) {
  const Tensor wide = t.to(accumulator_type(t.scalar_type())).transpose(1, 2);
  const int64_t group = wide.size(1) == 0 ? 1 : heads / wide.size(1);
  return group == 1 ? wide : wide.repeat_interleave(group, 1);
}

/// [B] -> [B, 1, 1, 1]
Tensor per_batch(const Tensor& index) { return index.to(torch::kLong).view({-1, 1, 1, 1}); }

/// Returns the visible columns of each row, bool [B or 1, H or 1, M, N].
Tensor visible_of(const ProblemArguments& a) {
  const int64_t seq_q = a.q1.size(1), seq_k = a.k1.size(1);
  const auto options = a.q1.options().dtype(torch::kLong);
  const Tensor n = torch::arange(seq_k, options).view({1, 1, 1, -1});
  Tensor aligned = torch::arange(seq_q, options).view({1, 1, -1, 1});  // m' = m + N - M
  aligned = a.align_to_key_lengths && a.key_lengths ? aligned + per_batch(*a.key_lengths) - seq_q
                                                    : aligned + seq_k - seq_q;
  Tensor visible = torch::ones({1, 1, seq_q, seq_k}, a.q1.options().dtype(torch::kBool));
  const Window bounds = a.causal ? a.window_bounds().causal() : a.window_bounds();
  if (bounds.right != kNoBound) visible = visible & (n <= aligned + bounds.right);
  if (bounds.left != kNoBound) visible = visible & (n >= aligned - bounds.left);
  if (a.key_starts) visible = visible & (n >= per_batch(*a.key_starts));
  if (a.key_lengths) visible = visible & (n < per_batch(*a.key_lengths));
  if (a.mask && a.mask->scalar_type() == torch::kBool) visible = visible & *a.mask;
  if (a.mask && a.mask->scalar_type() != torch::kBool) {
    visible = visible & (a.mask->detach() != -INFINITY);
  }
  return visible;
}

Tensor lambda_of(const ProblemArguments& a) {
  const Tensor lambda = a.lambda.to(accumulator_type(a.q1.scalar_type()));
  if (lambda.dim() == 3) return lambda.transpose(1, 2).unsqueeze(-1);
  return lambda.view({1, -1, 1, 1});
}

/// Returns one map and its lse. A row that sees no column gets finite scores for the softmax, so
/// that neither the row nor its gradient is NaN. Its map is then set to 0 and its lse to -inf.
std::pair<Tensor, Tensor> softmax(const Tensor& scores, const Tensor& visible) {
  const Tensor sees_none = ~visible.any(-1, /*keepdim=*/true);
  const Tensor masked = scores.masked_fill(~visible, -INFINITY).masked_fill(sees_none, 0.0);
  const Tensor lse = masked.logsumexp(-1).masked_fill(sees_none.squeeze(-1), -INFINITY);
  return {masked.softmax(-1).masked_fill(~visible, 0.0), lse};
}

Maps maps_of(const ProblemArguments& a) {
  const int64_t heads = a.q1.size(2);
  const Tensor visible = visible_of(a);
  // We zero keys that no row sees: they may hold NaN, and 0 * NaN would reach the gradient of q.
  const Tensor unseen = ~visible.any(-2).unsqueeze(-1);  // [B, H, N, 1]
  const Tensor k1 = heads_first(a.k1, heads).masked_fill(unseen, 0.0);
  const Tensor k2 = heads_first(a.k2, heads).masked_fill(unseen, 0.0);
  Tensor s1 = heads_first(a.q1, heads).matmul(k1.transpose(-1, -2)) * a.scale_or_default();
  Tensor s2 = heads_first(a.q2, heads).matmul(k2.transpose(-1, -2)) * a.scale2_or_default();
  if (a.mask && a.mask->scalar_type() != torch::kBool) {
    const Tensor bias = a.mask->to(s1.scalar_type());
    s1 = s1 + bias;
    s2 = s2 + bias;
  }
  const auto [p1, lse1] = softmax(s1, visible);
  const auto [p2, lse2] = softmax(s2, visible);
  return {p1, p2, visible, lse1, lse2, lambda_of(a)};
}

/// Returns sequence b of packed arguments as a batch of one.
template <class Arguments>
Arguments sequence(const Arguments& a, const Tensor& offsets_q, const Tensor& offsets_k,
                   int64_t b) {
  const auto bounds = [b](const Tensor& offsets) {
    const int32_t* data = offsets.const_data_ptr<int32_t>();
    return std::pair<int64_t, int64_t>(data[b], data[b + 1] - data[b]);
  };
  const auto [q_begin, q_count] = bounds(offsets_q);
  const auto [k_begin, k_count] = bounds(offsets_k);
  const auto rows = [](const Tensor& t, int64_t begin, int64_t count) {
    return t.narrow(0, begin, count).unsqueeze(0);
  };
  Arguments one = a;
  one.cu_seqlens_q.reset();
  one.cu_seqlens_k.reset();
  one.q1 = rows(a.q1, q_begin, q_count);
  one.q2 = rows(a.q2, q_begin, q_count);
  one.k1 = rows(a.k1, k_begin, k_count);
  one.k2 = rows(a.k2, k_begin, k_count);
  if constexpr (std::is_same_v<Arguments, AttentionArguments>) {
    one.v = rows(a.v, k_begin, k_count);
  }
  if (a.lambda.dim() == 2) one.lambda = rows(a.lambda, q_begin, q_count);
  if (a.key_starts) one.key_starts = a.key_starts->narrow(0, b, 1);
  if (a.key_lengths) one.key_lengths = a.key_lengths->narrow(0, b, 1);
  if (a.mask) {
    Tensor mask = *a.mask;
    while (mask.dim() < 4) mask = mask.unsqueeze(0);
    if (mask.size(0) > 1) mask = mask.narrow(0, b, 1);
    if (mask.size(2) > 1) mask = mask.narrow(2, 0, q_count);
    if (mask.size(3) > 1) mask = mask.narrow(3, 0, k_count);
    one.mask = mask;
  }
  return one;
}

ForwardResult batch_rows(const AttentionArguments& a) {
  const Maps maps = maps_of(a);
  const Tensor unseen = ~maps.visible.any(-2).unsqueeze(-1);
  const Tensor v = heads_first(a.v, a.q1.size(2)).masked_fill(unseen, 0.0);
  const Tensor o = maps.difference().matmul(v);  // [B, H, M, Dv]
  const Tensor o2 = maps.p2.matmul(v);
  Tensor out = o;
  if (a.norm_eps) {
    out = o * torch::rsqrt(o.square().mean(-1, /*keepdim=*/true) + *a.norm_eps);
    if (a.norm_weight) out = out * a.norm_weight->to(o.scalar_type());
    // With eps = 0, a row that sees no column would be 0 / sqrt(0).
    out = out.masked_fill(~maps.visible.any(-1, /*keepdim=*/true), 0.0);
  }
  out = out * a.out_scale;
  return {out.transpose(1, 2), maps.lse1, maps.lse2, o.transpose(1, 2), o2.transpose(1, 2)};
}

Tensor batch_stats(const ProblemArguments& a, double sparse_threshold) {
  const Maps maps = maps_of(a);
  const Tensor difference = maps.difference();
  const Tensor visible = maps.visible.expand_as(difference);
  const Tensor magnitude = difference.abs();
  const auto share = [&](const Tensor& condition) {
    const Tensor count = visible.sum(-1).clamp_min(1);
    return (condition & visible).sum(-1).to(difference.scalar_type()) / count;
  };
  const Tensor sees_any = visible.any(-1);
  const Tensor sum = magnitude.sum(-1);
  // With a = |A| / S, -sum a log a is log S - sum |A| log |A| / S, where 0 log 0 = 0.
  const Tensor safe = magnitude.masked_fill(magnitude == 0, 1.0);
  const Tensor safe_sum = sum.masked_fill(sum == 0, 1.0);
  const Tensor entropy = safe_sum.log() - (magnitude * safe.log()).sum(-1) / safe_sum;
  const auto column_or_zero = [&](const Tensor& index) {
    return difference.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(~sees_any, 0.0);
  };
  const Tensor order = difference.masked_fill(~visible, -INFINITY);
  const Tensor zero = torch::zeros_like(sum);
  const bool empty = difference.size(-1) == 0;
  std::vector<Tensor> stats(kStatCount);
  stats[kStatVisible] = visible.sum(-1).to(difference.scalar_type());
  stats[kStatAbsSum] = sum;
  stats[kStatSquareSum] = difference.square().sum(-1);
  stats[kStatNegativeMass] = (-difference).clamp_min(0.0).sum(-1);
  stats[kStatMax] = empty ? zero : column_or_zero(order.argmax(-1));
  stats[kStatSparse] = share(magnitude < sparse_threshold);
  stats[kStatFocus] = share(magnitude > 0.5);
  stats[kStatCoverage] = share(difference > 0.1);
  stats[kStatEntropy] = entropy;
  stats[kStatSinkMass] = empty ? zero : column_or_zero(visible.to(torch::kInt).argmax(-1));
  stats[kStatCancelled] = torch::minimum(maps.p1, (maps.lambda * maps.p2).clamp_min(0.0)).sum(-1);
  stats[kStatOverlap] = torch::minimum(maps.p1, maps.p2).sum(-1);
  return torch::stack(stats, -1).transpose(1, 2);  // [B, M, H, S]
}

/// Runs `compute` on each packed sequence and returns the results.
template <class Arguments, class Compute>
auto over_sequences(const Arguments& a, Compute compute) {
  const Tensor offsets_q = host_index("cu_seqlens_q", *a.cu_seqlens_q);
  const Tensor offsets_k = host_index("cu_seqlens_k", *a.cu_seqlens_k);
  std::vector<decltype(compute(a))> parts;
  for (int64_t b = 0; b + 1 < offsets_q.numel(); ++b) {
    parts.push_back(compute(sequence(a, offsets_q, offsets_k, b)));
  }
  return parts;
}

}  // namespace

ForwardResult attention_rows(const AttentionArguments& a) {
  if (!a.packed()) return batch_rows(a);
  std::vector<Tensor> out, lse1, lse2, o, o2;
  for (const ForwardResult& part : over_sequences(a, batch_rows)) {
    out.push_back(part.out.squeeze(0));
    lse1.push_back(part.lse1.squeeze(0));
    lse2.push_back(part.lse2.squeeze(0));
    o.push_back(part.o.squeeze(0));
    o2.push_back(part.o2.squeeze(0));
  }
  if (out.empty()) {
    const auto options = a.q1.options().dtype(accumulator_type(a.q1.scalar_type()));
    const Tensor rows = torch::empty({0, a.q1.size(1), a.v.size(2)}, options);
    const Tensor lse = torch::empty({a.q1.size(1), 0}, options);
    return {rows, lse, lse, rows, rows};
  }
  return {torch::cat(out, 0), torch::cat(lse1, 1), torch::cat(lse2, 1), torch::cat(o, 0),
          torch::cat(o2, 0)};
}

Tensor stats_rows(const ProblemArguments& a, double sparse_threshold) {
  if (!a.packed()) return batch_stats(a, sparse_threshold);
  std::vector<Tensor> parts = over_sequences(a, [&](const ProblemArguments& one) {
    return batch_stats(one, sparse_threshold).squeeze(0);
  });
  if (parts.empty()) {
    return torch::empty({0, a.q1.size(1), kStatCount},
                        a.q1.options().dtype(accumulator_type(a.q1.scalar_type())));
  }
  return torch::cat(parts, 0);
}

Tensor map_cells(const ProblemArguments& a, int64_t b, const MapGrid& grid) {
  ProblemArguments one = a;
  if (a.packed()) {
    one = sequence(a, host_index("cu_seqlens_q", *a.cu_seqlens_q),
                   host_index("cu_seqlens_k", *a.cu_seqlens_k), b);
  } else {
    one.q1 = a.q1.narrow(0, b, 1);
    one.q2 = a.q2.narrow(0, b, 1);
    one.k1 = a.k1.narrow(0, b, 1);
    one.k2 = a.k2.narrow(0, b, 1);
    if (a.lambda.dim() == 3) one.lambda = a.lambda.narrow(0, b, 1);
    if (a.key_starts) one.key_starts = a.key_starts->narrow(0, b, 1);
    if (a.key_lengths) one.key_lengths = a.key_lengths->narrow(0, b, 1);
    if (a.mask && a.mask->dim() == 4 && a.mask->size(0) > 1) one.mask = a.mask->narrow(0, b, 1);
  }
  const Maps maps = maps_of(one);
  Tensor whole = torch::cat({maps.p1, maps.p2, maps.difference()}, 0).transpose(0, 1);
  whole = torch::constant_pad_nd(  // a packed sequence may be shorter than the range
      whole, {0, std::max<int64_t>(0, grid.col_end - whole.size(-1)), 0,
              std::max<int64_t>(0, grid.row_end - whole.size(-2))});
  const Tensor part = whole.index(
      {Ellipsis, Slice(grid.row_begin, grid.row_end), Slice(grid.col_begin, grid.col_end)});
  // Each cell holds its entry of largest magnitude. We reduce columns first, then rows.
  const auto extremes = [](const Tensor& t, int64_t cells) {  // along the last axis
    const int64_t extent = t.size(-1);
    std::vector<Tensor> found;
    for (int64_t c = 0; c < cells; ++c) {
      const int64_t begin = (c * extent + cells - 1) / cells;
      const int64_t end = ((c + 1) * extent + cells - 1) / cells;
      const Tensor cell = t.narrow(-1, begin, end - begin);
      found.push_back(cell.gather(-1, cell.abs().argmax(-1, /*keepdim=*/true)));
    }
    return found.empty() ? t : torch::cat(found, -1);
  };
  const Tensor columns = extremes(part, grid.cols);
  return extremes(columns.transpose(-1, -2), grid.rows).transpose(-1, -2);
}

}  // namespace diffattn::ops::composed
