// SPDX-License-Identifier: Apache-2.0
#include "nn/routes/visible.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

Tensor with_four_axes(Tensor mask) {
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  return mask;
}

/// Returns which columns each row sees, [B or 1, H or 1, M, N]. Row m is aligned with column
/// m' = m + N - M.
Tensor visible_entries(const HeadTensors& heads, const Tensor& mask) {
  const AttentionOptions& o = heads.options;
  const int64_t rows = heads.q1.size(1), columns = heads.k1.size(1);
  const auto options = heads.q1.options().dtype(torch::kLong).requires_grad(false);
  const Tensor n = torch::arange(columns, options).view({1, 1, 1, -1});
  const Tensor aligned = torch::arange(rows, options).view({1, 1, -1, 1}) + (columns - rows);
  Tensor visible = torch::ones({1, 1, rows, columns}, options.dtype(torch::kBool));
  const Window bounds = o.bounds();
  if (bounds.right != kNoBound) visible = visible & (n <= aligned + bounds.right);
  if (bounds.left != kNoBound) visible = visible & (n >= aligned - bounds.left);
  if (o.key_starts()) visible = visible & (n >= per_batch(*o.key_starts()));
  if (o.key_lengths()) visible = visible & (n < per_batch(*o.key_lengths()));
  if (!mask.defined()) return visible;
  return visible & (mask.scalar_type() == torch::kBool ? mask : mask.detach() != -INFINITY);
}

Tensor map_mask(const Tensor& mask, int64_t count, bool interleaved) {
  if (!mask.defined() || mask.size(1) == 1) return mask;
  return interleaved ? mask.repeat_interleave(count, 1) : mask.repeat({1, count, 1, 1});
}

}  // namespace

Tensor per_batch(const Tensor& index) { return index.to(torch::kLong).view({-1, 1, 1, 1}); }

SdpaMask SdpaMask::repeated(int64_t count) const {
  return {is_causal, map_mask(mask, count, false), map_mask(sees_none, count, false)};
}

SdpaMask SdpaMask::interleaved(int64_t count) const {
  return {is_causal, map_mask(mask, count, true), map_mask(sees_none, count, true)};
}

SdpaMask sdpa_mask(const HeadTensors& heads, bool torch_causal) {
  const AttentionOptions& o = heads.options;
  const int64_t rows = heads.q1.size(1), columns = heads.k1.size(1);
  const Window bounds = o.bounds();
  const bool windowed = bounds.left != kNoBound || (!o.causal() && bounds.right != kNoBound);
  const bool restricted = o.mask() || windowed || o.key_starts() || o.key_lengths();
  if (!restricted && columns > 0) {
    if (!o.causal() || rows == 1) return {};
    if (torch_causal && rows == columns) return {.is_causal = true};
  }
  const Tensor mask = o.mask() ? with_four_axes(*o.mask()) : Tensor();
  const Tensor visible = visible_entries(heads, mask);
  const Tensor sees_none = ~visible.any(-1, /*keepdim=*/true);
  if (!mask.defined() || mask.scalar_type() == torch::kBool) {
    return {.mask = visible | sees_none, .sees_none = sees_none};
  }
  const auto type = heads.q1.scalar_type();
  const Tensor elsewhere =
      torch::full_like(visible, -INFINITY, mask.options().dtype(type).requires_grad(false))
          .masked_fill(sees_none, 0.0);
  return {.mask = torch::where(visible, mask.to(type), elsewhere), .sees_none = sees_none};
}

HeadTensors sequence(const HeadTensors& heads, const Tensor& offsets_q, const Tensor& offsets_k,
                     int64_t b) {
  const auto rows = [b](const Tensor& t, const Tensor& offsets) {
    const int64_t begin = offsets[b].item<int64_t>();
    return t.narrow(0, begin, offsets[b + 1].item<int64_t>() - begin).unsqueeze(0);
  };
  HeadTensors one = heads;
  one.q1 = rows(heads.q1, offsets_q);
  one.q2 = rows(heads.q2, offsets_q);
  one.k1 = rows(heads.k1, offsets_k);
  one.k2 = rows(heads.k2, offsets_k);
  one.v = rows(heads.v, offsets_k);
  if (heads.lambda.dim() == 2) one.lambda = rows(heads.lambda, offsets_q);
  AttentionOptions& o = one.options;
  o.cu_seqlens_q(std::nullopt).cu_seqlens_k(std::nullopt);
  if (o.key_starts()) o.key_starts(o.key_starts()->narrow(0, b, 1));
  if (o.key_lengths()) o.key_lengths(o.key_lengths()->narrow(0, b, 1));
  if (o.mask()) {  // its rows and columns count from the start of each sequence
    Tensor mask = with_four_axes(*o.mask());
    if (mask.size(0) > 1) mask = mask.narrow(0, b, 1);
    if (mask.size(2) > 1) mask = mask.narrow(2, 0, one.q1.size(1));
    if (mask.size(3) > 1) mask = mask.narrow(3, 0, one.k1.size(1));
    o.mask(mask);
  }
  return one;
}

}  // namespace diffattn::nn
