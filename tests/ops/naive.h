// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "diffattn/ops.h"

/// The paper's code in the type of its inputs, with rounding in every step. Tests compare the
/// errors of kernels with its errors.
namespace diffattn::testing {

/// Computes one sequence: q1 [M, H, D], q2 [M, H2, D], k [N, Hkv, D], v [N, Hkv, Dv], lambda [M, H]
/// or broadcast to it, bias [H, M, N] (-inf = hidden). Returns [M, H, Dv].
inline torch::Tensor naive_sequence(const std::vector<torch::Tensor>& qkv,
                                    const torch::Tensor& lambda, const torch::Tensor& bias,
                                    const AttentionOptions& options) {
  using torch::Tensor;
  const Tensor &q1 = qkv[0], &v = qkv[4];
  const auto type = q1.scalar_type();
  const auto wide = type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const int64_t group = q1.size(1) / v.size(1);
  const double scale = options.scale().value_or(1.0 / std::sqrt(q1.size(2)));
  const Tensor blind = (bias == -INFINITY).all(-1, /*keepdim=*/true);
  const auto map = [&](const Tensor& q, const Tensor& k, double factor) {
    const Tensor queries = q.repeat_interleave(q1.size(1) / q.size(1), 1);  // shared noise heads
    const Tensor s =
        torch::einsum("mhd,nhd->hmn", {queries, k.repeat_interleave(group, 1)}) * factor +
        bias.to(type);
    return torch::softmax(s.masked_fill(blind, 0.0).to(wide), -1).masked_fill(blind, 0.0).to(type);
  };
  const Tensor a =
      map(q1, qkv[2], scale) - lambda.to(type).transpose(0, 1).unsqueeze(-1) *
                                   map(qkv[1], qkv[3], options.scale2().value_or(scale));
  Tensor out = torch::einsum("hmn,nhd->mhd", {a, v.repeat_interleave(group, 1)});
  if (options.norm_eps()) {
    const Tensor x = out.to(wide);
    out = (x * torch::rsqrt(x.square().mean(-1, true) + *options.norm_eps())).to(type);
    if (options.norm_weight()) out = out * options.norm_weight()->to(type);
  }
  return out * options.out_scale();
}

/// Computes `attention` of CPU tensors.
inline torch::Tensor naive_attention(const std::vector<torch::Tensor>& t,
                                     const AttentionOptions& options) {
  using torch::Tensor;
  using torch::indexing::Slice;
  const bool packed = options.cu_seqlens_q().has_value();
  const Tensor offsets_q = packed ? options.cu_seqlens_q()->to(torch::kLong) : Tensor();
  const Tensor offsets_k = packed ? options.cu_seqlens_k()->to(torch::kLong) : Tensor();
  const int64_t batch = packed ? offsets_q.numel() - 1 : t[0].size(0);
  const int64_t heads = t[0].size(-2);
  const auto entry = [](const Tensor& index, int64_t b) { return index[b].item<int64_t>(); };
  std::vector<Tensor> outs;
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<Tensor> qkv;
    for (int i = 0; i < 5; ++i) {
      const Tensor& offsets = i < 2 ? offsets_q : offsets_k;
      qkv.push_back(packed ? t[i].index({Slice(entry(offsets, b), entry(offsets, b + 1))})
                           : t[i][b]);
    }
    const int64_t rows = qkv[0].size(0), columns = qkv[2].size(0);
    Tensor lambda = t[5];
    if (lambda.dim() == 3) lambda = lambda[b];
    if (lambda.dim() == 2 && packed) {
      lambda = lambda.index({Slice(entry(offsets_q, b), entry(offsets_q, b + 1))});
    }
    const Tensor n = torch::arange(columns), m = torch::arange(rows).unsqueeze(1) + columns - rows;
    Tensor seen = torch::ones({heads, rows, columns}, torch::kBool);
    if (options.causal() || options.window()) seen = seen & (n <= m);
    if (options.window()) seen = seen & (n > m - *options.window());
    if (options.window_left() >= 0) seen = seen & (m - n <= options.window_left());
    if (options.window_right() >= 0) seen = seen & (n - m <= options.window_right());
    if (options.key_starts()) seen = seen & (n >= entry(*options.key_starts(), b));
    if (options.key_lengths()) seen = seen & (n < entry(*options.key_lengths(), b));
    Tensor bias = torch::zeros({heads, rows, columns}, torch::kFloat64);
    if (options.mask()) {
      const Tensor& mask = *options.mask();
      const auto axis = [&](int64_t i, int64_t size) {
        return mask.size(i) == 1 ? size : mask.size(i);
      };
      const Tensor own = mask.expand({batch, heads, axis(2, rows), axis(3, columns)})[b].index(
          {Slice(), Slice(0, rows), Slice(0, columns)});
      if (mask.scalar_type() == torch::kBool) {
        seen = seen & own;
      } else {
        bias = bias + own;
      }
    }
    outs.push_back(naive_sequence(qkv, lambda.expand({rows, heads}),
                                  bias.masked_fill(~seen, -INFINITY), options));
  }
  return packed ? torch::cat(outs) : torch::stack(outs);
}

}  // namespace diffattn::testing
