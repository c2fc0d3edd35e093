// SPDX-License-Identifier: Apache-2.0
//
// G_t v = (1 / t) sum_n sum_{m <= t} P1[m, n] v[n] = (1 / t) sum_{m <= t} (P1 v)[m], which is a
// running mean of the rows of o1 = P1 v.

#include "diffattn/nn/dint_attention.h"

#include <vector>

#include "nn/parts/map_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

constexpr size_t kSumsSlot = 2;  // after keys and values

bool is_causal(const HeadTensors& h) { return h.options.bounds().right <= 0; }

/// Returns the number of rows that each row averages over; broadcasts to [B, M, 1, 1].
Tensor real_row_count(const HeadTensors& h) {
  const int64_t seq_q = h.q1.size(1), seq_k = h.k1.size(1);
  const auto integers = h.q1.options().dtype(torch::kLong);
  const Tensor begin = h.options.key_starts()
                           ? h.options.key_starts()->to(torch::kLong).view({-1, 1, 1, 1})
                           : torch::zeros({1, 1, 1, 1}, integers);
  Tensor end = torch::full({1, 1, 1, 1}, seq_k, integers);
  if (is_causal(h)) end = torch::arange(seq_k - seq_q + 1, seq_k + 1, integers).view({1, -1, 1, 1});
  if (h.options.key_lengths()) {
    end = torch::minimum(end, h.options.key_lengths()->to(torch::kLong).view({-1, 1, 1, 1}));
  }
  return (end - begin).clamp_min(1);
}

/// Computes G v [B, M or 1, H, Dv] from o1 = P1 v [B, M, H, Dv], for tensors that are not packed.
Tensor averaged(const HeadTensors& h, const Tensor& o1, KvCache* cache) {
  Tensor rows = o1.scalar_type() == torch::kFloat64 ? o1 : o1.to(torch::kFloat32);
  if (const Tensor real = real_rows(h); real.defined()) {
    rows = rows.masked_fill(~real.unsqueeze(-1).unsqueeze(-1), 0.0);
  }
  if (!is_causal(h)) return rows.sum(1, /*keepdim=*/true) / real_row_count(h);
  Tensor sums = rows.cumsum(1);
  if (cache != nullptr) {
    const Tensor earlier = cache->filled(kSumsSlot);
    if (earlier.defined() && earlier.size(1) > 0) sums = sums + earlier.narrow(1, -1, 1);
    cache->append(kSumsSlot, sums);
  }
  return sums / real_row_count(h);
}

/// Computes G v of packed sequences from o1 [total, H, Dv].
Tensor averaged_packed(const HeadTensors& heads, const Tensor& o1) {
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const HeadTensors& one : sequences(heads)) {
    const int64_t length = one.q1.size(1);
    const Tensor mean = averaged(one, o1.narrow(0, begin, length).unsqueeze(0), nullptr);
    parts.push_back(mean.squeeze(0).expand({length, -1, -1}));
    begin += length;
  }
  return parts.empty() ? o1 : torch::cat(parts, 0);
}

/// Applies the head norm and out_scale of V1.
Tensor head_norm(const Tensor& o, const AttentionOptions& options) {
  Tensor y = o;
  if (options.norm_eps()) {
    y = o * torch::rsqrt(o.square().mean(-1, /*keepdim=*/true) + *options.norm_eps());
    if (options.norm_weight()) y = y * options.norm_weight()->to(o.scalar_type());
  }
  return y * options.out_scale();
}

}  // namespace

Tensor dint_heads(Route route, const HeadTensors& heads, KvCache* cache) {
  const bool packed = heads.options.cu_seqlens_q().has_value();
  if (cache != nullptr && (packed || !is_causal(heads))) {
    throw_argument_error(
        "cache", "none, or causal attention over [B, M, E]",
        packed ? "a cache with packed sequences" : "a cache with an average over later rows");
  }
  HeadTensors both = heads;
  both.options.norm_eps(std::nullopt).norm_weight(std::nullopt).out_scale(1.0);
  HeadTensors first = both;
  first.q2 = first.q1, first.k2 = first.k1;
  first.lambda = torch::zeros({}, heads.lambda.options().requires_grad(false));
  // SDPA would store the map in memory, since v is wider than q. The fused operator does not.
  first.single_map = route != Route::kFused;

  const Tensor o = attend(route, both);  // (P1 - lambda P2) v
  const Tensor o1 = attend(route, first);
  const Tensor g = packed ? averaged_packed(both, o1) : averaged(both, o1, cache);
  const Tensor lambda = heads.lambda.dim() > 0 ? heads.lambda.unsqueeze(-1) : heads.lambda;
  return o.to(g.scalar_type()) + lambda.to(g.scalar_type()) * g;
}

DintAttentionImpl::DintAttentionImpl(const MultiheadDiffAttentionOptions& options_)
    : MultiheadDiffAttentionImpl(options_) {
  if (options.kind() != AttentionKind::kV1) {
    throw_argument_error("kind", "V1 for DINT", "another one");
  }
  if (options.cross_attention()) {
    throw_argument_error("cross_attention", "self-attention for DINT", "cross-attention");
  }
}

Tensor DintAttentionImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  const HeadTensors heads = head_tensors(input);
  if (trace != nullptr) trace->calls.push_back(heads);
  const Tensor o = head_norm(dint_heads(options.route(), heads, input.cache), heads.options);
  const Tensor y = out_proj_(o.to(input.x.scalar_type()).flatten(-2));
  return torch::dropout(y, options.dropout(), is_training());
}

}  // namespace diffattn::nn
