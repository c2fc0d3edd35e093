// SPDX-License-Identifier: Apache-2.0
//
// Differential attention on top of torch's scaled_dot_product_attention (SDPA), in the ways that
// published code uses it. Benchmarks compare the fused operator with these routes, and tests check
// it against them.

#include <algorithm>
#include <cctype>
#include <cmath>

#include "diffattn/nn/route.h"
#include "nn/routes/checkpointed_calls.h"
#include "nn/routes/shared_rows.h"
#include "nn/routes/visible.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// The arguments of an attention call in the form of SDPA: heads before rows, keys repeated for
/// every head, one scale for both maps.
struct SdpaProblem {
  Tensor q1, q2;  // [B, H, M, D]
  Tensor k1, k2;  // [B, H, N, D]
  Tensor v;       // [B, H, N, Dv]
  Tensor lambda;  // broadcasts to [B, H, M, 1]
  double scale = 1.0;
  SdpaMask mask;
};

/// Converts one number, [H] or [B, M, H] to a shape that broadcasts to [B, H, M, 1].
Tensor lambda_by_head(const Tensor& lambda, torch::ScalarType type) {
  const Tensor typed = lambda.to(type);
  return typed.dim() == 3 ? typed.transpose(1, 2).unsqueeze(-1) : typed.view({1, -1, 1, 1});
}

SdpaProblem sdpa_problem(Route route, const HeadTensors& heads) {
  const int64_t count = heads.q1.size(2);
  const auto shared = [&](const Tensor& t) {  // [B, N, Hkv, W] -> [B, H, N, W]
    const int64_t group = t.size(2) == 0 ? 1 : count / t.size(2);
    const Tensor first = t.transpose(1, 2);
    // Zero-padded GQA lets SDPA share the kv heads.
    return group == 1 || route == Route::kZeroPaddedGqa ? first : first.repeat_interleave(group, 1);
  };
  SdpaProblem p;
  p.scale = heads.options.scale().value_or(1.0 / std::sqrt(static_cast<double>(heads.q1.size(-1))));
  const double scale2 = heads.options.scale2().value_or(p.scale);
  p.q1 = heads.q1.transpose(1, 2);
  p.q2 = heads.q2.transpose(1, 2);
  const int64_t noise_heads = heads.q2.size(2);
  if (noise_heads != count) p.q2 = p.q2.repeat_interleave(count / noise_heads, 1);
  if (scale2 != p.scale) p.q2 = p.q2 * (scale2 / p.scale);
  p.k1 = shared(heads.k1);
  p.k2 = shared(heads.k2);
  p.v = shared(heads.v);
  p.lambda = lambda_by_head(heads.lambda, p.q1.scalar_type());
  p.mask = sdpa_mask(heads, /*torch_causal=*/route != Route::kNaive);
  return p;
}

Tensor sdpa(const SdpaProblem& p, const Tensor& q, const Tensor& k, const Tensor& v,
            const SdpaMask& mask, bool gqa = false) {
  const auto given = mask.mask.defined() ? std::optional<Tensor>(mask.mask) : std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, given, 0.0, mask.is_causal, p.scale, gqa);
}

Tensor difference(const SdpaProblem& p, const Tensor& o1, const Tensor& o2) {
  return o1 - p.lambda * o2;
}

std::vector<Tensor> halves_of(const Tensor& v) {
  if (v.size(-1) % 2 != 0) {
    throw_argument_error("v", "an even width, since this route splits v into halves",
                         std::to_string(v.size(-1)));
  }
  return v.chunk(2, -1);
}

/// Returns one map in the type of q.
Tensor softmax_map(const SdpaProblem& p, const Tensor& q, const Tensor& k) {
  Tensor s = (q * p.scale).matmul(k.transpose(-1, -2));
  const Tensor& mask = p.mask.mask;
  if (mask.defined()) {
    s = mask.scalar_type() == torch::kBool ? s.masked_fill(~mask, -INFINITY) : s + mask;
  }
  const auto wide = q.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  return s.softmax(-1, wide).to(q.scalar_type());
}

Tensor naive(const SdpaProblem& p) {
  return difference(p, softmax_map(p, p.q1, p.k1), softmax_map(p, p.q2, p.k2)).matmul(p.v);
}

Tensor two_calls(const SdpaProblem& p) {
  return difference(p, sdpa(p, p.q1, p.k1, p.v, p.mask), sdpa(p, p.q2, p.k2, p.v, p.mask));
}

/// Pads q and k, because torch's flash kernels need q, k and v of one width.
Tensor two_calls_padded(const SdpaProblem& p) {
  const auto pad = [&](const Tensor& x) {
    return torch::constant_pad_nd(x, {0, std::max<int64_t>(0, p.v.size(-1) - x.size(-1))});
  };
  return difference(p, sdpa(p, pad(p.q1), pad(p.k1), p.v, p.mask),
                    sdpa(p, pad(p.q2), pad(p.k2), p.v, p.mask));
}

/// Concatenates the halves before the subtraction, so that the gradients of all four calls have the
/// same strides. torch's cuDNN backward reuses its plan for calls of the same shapes even if the
/// strides of the gradient differ, and would then read the wrong memory.
Tensor four_calls(const SdpaProblem& p) {
  const auto half = halves_of(p.v);
  const auto map = [&](const Tensor& q, const Tensor& k) {
    return torch::cat({sdpa(p, q, k, half[0], p.mask), sdpa(p, q, k, half[1], p.mask)}, -1);
  };
  return difference(p, map(p.q1, p.k1), map(p.q2, p.k2));
}

/// Makes one call with four times the heads: (map 1, map 1, map 2, map 2) with
/// (v left, v right, v left, v right).
Tensor one_call_4h(const SdpaProblem& p) {
  const auto half = halves_of(p.v);
  const Tensor o =
      sdpa(p, torch::cat({p.q1, p.q1, p.q2, p.q2}, 1), torch::cat({p.k1, p.k1, p.k2, p.k2}, 1),
           torch::cat({half[0], half[1], half[0], half[1]}, 1), p.mask.repeated(4));
  const auto part = o.chunk(4, 1);
  return difference(p, torch::cat({part[0], part[1]}, -1), torch::cat({part[2], part[3]}, -1));
}

Tensor one_call_wide_v(const SdpaProblem& p) {
  const auto o = sdpa(p, torch::cat({p.q1, p.q2}, 1), torch::cat({p.k1, p.k2}, 1),
                      torch::cat({p.v, p.v}, 1), p.mask.repeated(2))
                     .chunk(2, 1);
  return difference(p, o[0], o[1]);
}

/// Makes one call of width 2D: each head has the query heads [q1|0] and [0|q2] and the key head
/// [k1|k2].
Tensor zero_padded_gqa(const SdpaProblem& p) {
  const Tensor zero = torch::zeros_like(p.q1);
  const Tensor q =
      torch::stack({torch::cat({p.q1, zero}, -1), torch::cat({zero, p.q2}, -1)}, 2).flatten(1, 2);
  const Tensor o =
      sdpa(p, q, torch::cat({p.k1, p.k2}, -1), p.v, p.mask.interleaved(2), /*gqa=*/true)
          .unflatten(1, {-1, 2});
  return difference(p, o.select(2, 0), o.select(2, 1));
}

/// Returns [B, H, M, Dv] before the head norm.
Tensor compute(Route route, const SdpaProblem& p) {
  switch (route) {
    case Route::kFused:
    case Route::kNaive: return naive(p);
    case Route::kTwoCalls: return two_calls(p);
    case Route::kTwoCallsPadded: return two_calls_padded(p);
    case Route::kFourCalls: return four_calls(p);
    case Route::kOneCall4h: return one_call_4h(p);
    case Route::kOneCallWideV: return one_call_wide_v(p);
    case Route::kZeroPaddedGqa: break;
  }
  return zero_padded_gqa(p);
}

Tensor single_map(Route route, const SdpaProblem& p) {
  if (route == Route::kNaive) return softmax_map(p, p.q1, p.k1).matmul(p.v);
  return sdpa(p, p.q1, p.k1, p.v, p.mask, route == Route::kZeroPaddedGqa);
}

/// Applies the head norm and out_scale to o [B, H, M, Dv].
Tensor finish(const Tensor& o, const AttentionOptions& options) {
  Tensor out = o;
  if (options.norm_eps()) {
    const auto wide = o.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const Tensor x = o.to(wide);
    out = x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + *options.norm_eps());
    if (options.norm_weight()) out = out * options.norm_weight()->to(wide);
  }
  return (out * options.out_scale()).to(o.scalar_type());
}

/// Runs `attend_here` for each packed sequence, one after another.
Tensor over_sequences(Route route, const HeadTensors& heads) {
  const Tensor offsets_q = heads.options.cu_seqlens_q()->to(torch::kCPU, torch::kLong);
  const Tensor offsets_k = heads.options.cu_seqlens_k()->to(torch::kCPU, torch::kLong);
  std::vector<Tensor> outs;
  for (int64_t b = 0; b + 1 < offsets_q.numel(); ++b) {
    outs.push_back(attend_here(route, sequence(heads, offsets_q, offsets_k, b)).squeeze(0));
  }
  if (outs.empty()) return heads.q1.new_empty({0, heads.q1.size(1), heads.v.size(-1)});
  return torch::cat(outs, 0);
}

/// True if `decode` gives the same result as `attention`: few rows, no gradients, masks that
/// `decode` supports. It is faster for few rows, because it splits the keys among threads.
bool takes_decode(const HeadTensors& heads) {
  constexpr int64_t kFewRows = 8;
  if (at::GradMode::is_enabled()) return false;
  const AttentionOptions& o = heads.options;
  const int64_t rows = heads.q1.size(1);
  if (o.cu_seqlens_q() || rows > kFewRows || rows >= heads.k1.size(1)) return false;
  // `decode` is causal, with rows aligned to key_lengths. For a single row without a left bound,
  // neither changes the result.
  const Window bounds = o.bounds();
  if (o.key_lengths() && (rows > 1 || bounds.left != kNoBound)) return false;
  return rows == 1 || bounds.right <= 0;
}

Tensor fused(const HeadTensors& h) {
  if (auto* calls = CheckpointedCalls::current()) return calls->attend(h);
  return takes_decode(h) ? decode(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options)
                         : attention(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options);
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> all{
      Route::kFused,     Route::kNaive,     Route::kTwoCalls,     Route::kTwoCallsPadded,
      Route::kFourCalls, Route::kOneCall4h, Route::kOneCallWideV, Route::kZeroPaddedGqa};
  return all;
}

std::string route_name(Route route) {
  switch (route) {
    case Route::kFused: return "fused";
    case Route::kNaive: return "naive";
    case Route::kTwoCalls: return "two calls";
    case Route::kTwoCallsPadded: return "two calls, padded";
    case Route::kFourCalls: return "four calls";
    case Route::kOneCall4h: return "one call, 4h heads";
    case Route::kOneCallWideV: return "one call, wide V";
    case Route::kZeroPaddedGqa: break;
  }
  return "zero-padded GQA";
}

Route route_from_name(const std::string& name) {
  const auto plain = [](const std::string& text) {  // "two calls, padded" -> "twocallspadded"
    std::string result;
    for (const char c : text) {
      if (std::isalnum(static_cast<unsigned char>(c))) {
        result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
    }
    return result;
  };
  std::string known;
  for (const Route route : routes()) {
    if (plain(route_name(route)) == plain(name)) return route;
    known += (known.empty() ? "'" : ", '") + route_name(route) + "'";
  }
  throw_argument_error("route", "one of " + known, "'" + name + "'");
}

SharedRows*& SharedRows::innermost() {
  thread_local SharedRows* rows = nullptr;
  return rows;
}

Tensor attend(Route route, const HeadTensors& heads) {
  if (SharedRows* rows = SharedRows::current()) return rows->attend(route, heads);
  return attend_here(route, heads);
}

Tensor attend_here(Route route, const HeadTensors& heads) {
  if (route == Route::kFused && !heads.single_map) return fused(heads);
  if (heads.options.cu_seqlens_q()) return over_sequences(route, heads);
  const SdpaProblem p = sdpa_problem(route, heads);
  Tensor out = finish(heads.single_map ? single_map(route, p) : compute(route, p), heads.options);
  if (p.mask.sees_none.defined()) out = out.masked_fill(p.mask.sees_none, 0.0);
  return out.transpose(1, 2);
}

}  // namespace diffattn::nn
