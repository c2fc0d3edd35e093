// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/attention_point.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace diffattn::app {
namespace {

using torch::Tensor;

/// Returns the keys that a query sees with --mask window.
int64_t window_of(const AttentionPoint& p) { return std::max<int64_t>(1, p.seq / 8); }

/// Returns unequal document lengths of at most `seq` that add up to `total` tokens.
std::vector<int64_t> document_lengths(int64_t seq, int64_t total) {
  const double shares[] = {1.0, 0.125, 0.5, 0.25, 0.75, 0.0625};
  std::vector<int64_t> lengths;
  for (int64_t left = total; left > 0; left -= lengths.back()) {
    const double share = shares[lengths.size() % std::size(shares)];
    lengths.push_back(std::clamp<int64_t>(std::llround(share * static_cast<double>(seq)), 1, left));
  }
  return lengths;
}

/// Counts the visible (query, key) pairs of all sequences.
double visible_pairs(const AttentionSettings& s, const AttentionPoint& p) {
  const auto triangle = [](double n) { return n * (n + 1) / 2; };
  if (p.packed()) {
    double sum = 0.0;
    for (const int64_t n : document_lengths(p.seq, s.batch * p.seq)) {
      sum += triangle(static_cast<double>(n));
    }
    return sum;
  }
  const auto n = static_cast<double>(p.seq), w = static_cast<double>(window_of(p));
  const double visible = p.pass == "decode"   ? n
                         : p.mask == "causal" ? triangle(n)
                         : p.mask == "window" ? n * w - triangle(w - 1)
                                              : n * n;
  return visible * static_cast<double>(s.batch);
}

}  // namespace

std::vector<AttentionPoint> attention_points(const AttentionSettings& s) {
  std::vector<AttentionPoint> points;
  for (const int threads : s.threads) {
    for (const int64_t head_dim : s.head_dim) {
      for (const int64_t seq : s.seq) {
        for (const auto& dtype : s.dtype) {
          for (const auto& mask : s.mask) {
            for (const auto& pass : s.pass) {
              // The query of decode sees all keys with every mask, so one mask is enough.
              if (pass == "decode" && mask != s.mask.front()) continue;
              points.push_back({seq, head_dim, dtype, mask, pass, threads});
            }
          }
        }
      }
    }
  }
  return points;
}

LayerTensors attention_tensors(const AttentionSettings& s, const AttentionPoint& p) {
  const auto options = torch::TensorOptions().dtype(bench_dtype(p.dtype)).device(s.device);
  const int64_t batch = p.packed() ? 1 : s.batch, seq = p.packed() ? s.batch * p.seq : p.seq;
  LayerTensors t = random_layer(batch, s.heads, seq, p.head_dim, options, s.lambda == "token");
  if (p.packed()) t.lengths = document_lengths(p.seq, seq);
  if (p.pass == "decode") {
    t.q1 = t.q1.detach().narrow(2, 0, 1);
    t.q2 = t.q2.detach().narrow(2, 0, 1);
    if (t.lambda.dim() == 3) t.lambda = t.lambda.detach().narrow(1, 0, 1);
  }
  return t;
}

AttentionOptions attention_options(const AttentionSettings& s, const AttentionPoint& p,
                                   const LayerTensors& t) {
  AttentionOptions options;
  if (p.pass == "decode") return options;
  options.causal(p.mask == "causal" || p.packed());
  if (p.mask == "window") options.window(window_of(p));
  const auto numbers = torch::TensorOptions().dtype(torch::kFloat32).device(s.device);
  const auto square = [&] { return torch::rand({1, 1, p.seq, p.seq}, numbers); };
  if (p.mask == "tensor") {  // half of the pairs; the diagonal keeps every row from being empty
    options.mask((square() < 0.5).logical_or(torch::eye(p.seq, numbers.dtype(torch::kBool))));
  }
  if (p.mask == "bias") options.mask(square().to(bench_dtype(p.dtype)));
  if (p.packed()) {
    const Tensor ends = torch::tensor(t.lengths).cumsum(0);
    const Tensor offsets = torch::constant_pad_nd(ends, {1, 0}).to(s.device, torch::kInt32);
    options.cu_seqlens_q(offsets).cu_seqlens_k(offsets);
  }
  return options;
}

double useful_flop(const AttentionSettings& s, const AttentionPoint& p) {
  const double per_pair = p.pass == "backward" ? 20.0 : s.on_gpu() ? 12.0 : 8.0;
  return static_cast<double>(s.heads) * visible_pairs(s, p) * per_pair *
         static_cast<double>(p.head_dim);
}

}  // namespace diffattn::app
