// SPDX-License-Identifier: Apache-2.0
//
// Routes for packed documents on top of torch's attention.

#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <cmath>

#include "apps/diffattn/bench/routes/routes.h"

namespace diffattn::app {
namespace {

using torch::Tensor;

/// Return views: [1, H, total, width] -> [total, H, width], and back.
Tensor packed(const Tensor& x) { return x[0].transpose(0, 1); }
Tensor unpacked(const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); }

nn::HeadTensors packed_heads(const LayerTensors& t, const AttentionOptions& options) {
  return {.q1 = packed(t.q1),
          .q2 = packed(t.q2),
          .k1 = packed(t.k1),
          .k2 = packed(t.k2),
          .v = packed(t.v),
          .lambda = t.lambda.dim() == 3 ? t.lambda[0] : t.lambda,
          .options = options};
}

/// Computes packed documents: the fused operator at once, other routes one by one.
Tensor by_document(nn::Route route, const LayerTensors& t, const AttentionOptions& options) {
  return unpacked(attend(route, packed_heads(t, options)));
}

/// Computes a batch padded to the longest document. It needs no mask: rows are causal and the
/// padding comes last.
Tensor by_padded_batch(nn::Route route, const LayerTensors& t, const AttentionOptions& options) {
  nn::HeadTensors heads = packed_heads(t, options);
  heads.options.cu_seqlens_q(std::nullopt).cu_seqlens_k(std::nullopt);
  const auto pad = [&](const Tensor& x) {  // [total, ...] -> [documents, longest, ...]
    return at::pad_sequence(x.split_with_sizes(t.lengths), /*batch_first=*/true);
  };
  for (Tensor* x : {&heads.q1, &heads.q2, &heads.k1, &heads.k2, &heads.v}) *x = pad(*x);
  if (heads.lambda.dim() == 2) heads.lambda = pad(heads.lambda);
  const Tensor out = attend(route, heads);
  std::vector<Tensor> documents;
  for (size_t i = 0; i < t.lengths.size(); ++i) {
    documents.push_back(out[static_cast<int64_t>(i)].narrow(0, 0, t.lengths[i]));
  }
  return unpacked(torch::cat(documents));
}

/// Computes one map times v with torch's kernels for packed documents: [total, H, width].
using PackedCall = Tensor (*)(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& offsets, int64_t longest, double scale);

Tensor packed_flash(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                    int64_t longest, double scale) {
  return std::get<0>(at::_flash_attention_forward(q, k, v, offsets, offsets, longest, longest,
                                                  /*dropout_p=*/0.0, /*is_causal=*/true,
                                                  /*return_debug_mask=*/false, scale));
}

Tensor packed_efficient(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                        int64_t longest, double scale) {
  constexpr int64_t kCausal = 1;
  return std::get<0>(at::_efficient_attention_forward(
                         q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/std::nullopt,
                         offsets, offsets, longest, longest, /*dropout_p=*/0.0, kCausal,
                         /*compute_log_sumexp=*/at::GradMode::is_enabled(), scale))
      .squeeze(0);
}

/// Computes both maps with v split into `parts` parts. The flash kernels need q and k padded to the
/// width of a part.
Tensor by_packed_calls(PackedCall call, int64_t parts, const LayerTensors& t,
                       const AttentionOptions& options) {
  const nn::HeadTensors h = packed_heads(t, options);
  const int64_t longest = *std::max_element(t.lengths.begin(), t.lengths.end());
  const double scale = 1.0 / std::sqrt(static_cast<double>(h.q1.size(-1)));
  const int64_t padding = call == packed_flash ? h.v.size(-1) / parts - h.q1.size(-1) : 0;
  const auto pad = [&](const Tensor& x) {
    return padding > 0 ? torch::constant_pad_nd(x, {0, padding}) : x;
  };
  const Tensor typed = h.lambda.to(h.v.scalar_type());
  const Tensor lambda = typed.dim() == 2 ? typed.unsqueeze(-1) : typed;
  std::vector<Tensor> outs;
  for (const Tensor& v : h.v.chunk(parts, -1)) {
    const auto map = [&](const Tensor& q, const Tensor& k) {
      return call(pad(q), pad(k), v, *options.cu_seqlens_q(), longest, scale);
    };
    outs.push_back(map(h.q1, h.k1) - lambda * map(h.q2, h.k2));
  }
  return unpacked(torch::cat(outs, -1));
}

std::vector<BenchRoute> all_packed_routes(bool on_gpu) {
  std::vector<BenchRoute> list;
  const auto add = [&](const BenchRoute& route) {
    const auto more = on_gpu ? with_each_kernels(route) : std::vector<BenchRoute>{route};
    list.insert(list.end(), more.begin(), more.end());
  };
  for (const nn::Route route : nn::routes()) {
    const BenchRoute one{
        .name = route_name(route),
        .compute = [route](const LayerTensors& t, const AttentionOptions& options) {
          return by_document(route, t, options);
        }};
    const bool own = route == nn::Route::kFused || route == nn::Route::kNaive;
    own ? list.push_back(one) : add(one);
  }
  for (const nn::Route route : {nn::Route::kTwoCalls, nn::Route::kFourCalls}) {
    add({.name = route_name(route) + ", padded batch",
         .compute = [route](const LayerTensors& t, const AttentionOptions& options) {
           return by_padded_batch(route, t, options);
         }});
  }
  if (!on_gpu) return list;
  const auto add_packed = [&](const char* name, PackedCall call, int64_t parts) {
    list.push_back(
        {.name = name, .compute = [=](const LayerTensors& t, const AttentionOptions& options) {
           return by_packed_calls(call, parts, t, options);
         }});
  };
  add_packed("two calls, packed efficient", packed_efficient, 1);
  add_packed("two calls, packed flash", packed_flash, 1);
  add_packed("four calls, packed flash", packed_flash, 2);
  return list;
}

}  // namespace

const std::vector<BenchRoute>& packed_routes(bool on_gpu) {
  static const std::vector<BenchRoute> on_cpu_list = all_packed_routes(false),
                                       on_gpu_list = all_packed_routes(true);
  return on_gpu ? on_gpu_list : on_cpu_list;
}

}  // namespace diffattn::app
