// SPDX-License-Identifier: Apache-2.0
//
// One softmax over a bank: the keys of several paths of introspective attention.
//
// Concatenated (naive, flash 1): keys are in (token s, path j) order, column s P + j for P paths. A
// row at position t sees columns n < (t + 1) P. Relative to its own position, every row sees the
// same columns, so all blocks of rows use shifted parts of one mask.
//
// Merged (flash 2): one call per path j gives o_j and lse_j. Then out = sum_j w_j o_j with
// w = softmax_j(lse_j).

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "diffattn/nn/introspective_attention.h"
#include "diffattn/nn/route.h"
#include "nn/parts/map_rows.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kBlockRows = 256;

int64_t bank_size(const Tensors& ks) { return static_cast<int64_t>(ks.size()); }

/// Interleaves the tensors [B, N, Hkv, W] of all paths to [B, N paths, Hkv, W].
Tensor interleave(const Tensors& paths) {
  return paths.size() == 1 ? paths[0] : torch::stack(paths, 2).flatten(1, 2);
}

/// Returns the mask of the last `rows` of `tokens` tokens, bool [rows, tokens paths].
Tensor block_mask(int64_t rows, int64_t tokens, int64_t paths, const Window& bounds,
                  torch::Device device) {
  const auto integers = torch::TensorOptions().dtype(torch::kLong).device(device);
  const Tensor s = torch::arange(tokens, integers).unsqueeze(0);
  const Tensor t = torch::arange(tokens - rows, tokens, integers).unsqueeze(1);
  const Tensor visible = (s <= t + bounds.right) & (s >= t - bounds.left);
  return visible.repeat_interleave(paths, 1);
}

/// Converts a mask over tokens to one over (token, path) columns, with four axes.
Tensor widen_mask(Tensor mask, int64_t paths) {
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  return mask.size(3) > 1 ? mask.repeat_interleave(paths, 3) : mask;
}

Tensor combine(const Tensor& visible, const std::optional<Tensor>& mask) {
  if (!mask) return visible;
  if (mask->scalar_type() == torch::kBool) return visible & *mask;
  return mask->masked_fill(~visible, -INFINITY);
}

/// Returns the options of a call over a bank, in which key_starts and key_lengths count (token,
/// path) columns. The caller adds the mask.
AttentionOptions bank_options(const AttentionOptions& options, int64_t paths) {
  AttentionOptions result = options;
  result.causal(false).window(std::nullopt).mask(std::nullopt);
  if (options.key_starts()) result.key_starts(*options.key_starts() * paths);
  if (options.key_lengths()) result.key_lengths(*options.key_lengths() * paths);
  return result;
}

HeadTensors single_map(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options) {
  const auto wide = q.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const Tensor zero = torch::zeros({}, q.options().dtype(wide).requires_grad(false));
  return {.q1 = q,
          .q2 = q,
          .k1 = k,
          .k2 = k,
          .v = v,
          .lambda = zero,
          .options = options,
          .single_map = true};
}

Tensor plain_attention(const HeadTensors& h) {
  return attention(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options);
}

Tensor naive(const Tensor& q, const Tensors& ks, const Tensors& vs,
             const AttentionOptions& options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const HeadTensors bank = bank_call(q, ks, vs, options);
  const Tensor map = map_rows(bank, 0, q.size(1));  // [B, H, M, N paths]
  Tensor v = bank.v.transpose(1, 2);
  v = v.repeat_interleave(map.size(1) / v.size(1), 1).to(map.scalar_type());
  return map.matmul(v).transpose(1, 2).to(q.scalar_type());
}

Tensor concatenated(const Tensor& q, const Tensors& ks, const Tensors& vs,
                    const AttentionOptions& options) {
  // Blocks of rows share a mask only if no row sees a later token.
  if (options.bounds().right != 0) return plain_attention(bank_call(q, ks, vs, options));
  const int64_t paths = bank_size(ks), rows = q.size(1), tokens = ks[0].size(1);
  const Tensor k = interleave(ks), v = interleave(vs);
  const AttentionOptions plain = bank_options(options, paths);
  std::optional<Tensor> given;
  if (options.mask()) given = widen_mask(*options.mask(), paths);
  const Tensor shared =
      block_mask(std::min(kBlockRows, rows), tokens, paths, options.bounds(), q.device());
  Tensors parts;
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - begin);
    const int64_t seen = tokens - rows + begin + count;  // tokens up to the block's last row
    const Tensor visible = shared.narrow(0, shared.size(0) - count, count)
                               .narrow(1, (tokens - seen) * paths, seen * paths);
    std::optional<Tensor> block = given;
    if (block && block->size(2) > 1) block = block->narrow(2, begin, count);
    if (block && block->size(3) > 1) block = block->narrow(3, 0, seen * paths);
    AttentionOptions with_mask = plain;
    with_mask.mask(combine(visible, block));
    if (with_mask.key_lengths()) {
      with_mask.key_lengths(with_mask.key_lengths()->clamp_max(seen * paths));
    }
    if (with_mask.key_starts()) {
      with_mask.key_starts(with_mask.key_starts()->clamp_max(seen * paths));
    }
    parts.push_back(
        plain_attention(single_map(q.narrow(1, begin, count), k.narrow(1, 0, seen * paths),
                                   v.narrow(1, 0, seen * paths), with_mask)));
  }
  return parts.empty() ? plain_attention(single_map(q, k, v, plain)) : torch::cat(parts, 1);
}

struct Partial {
  Tensor out;  // [B, M, H, Dv]
  Tensor lse;  // [B, M, H]
};

/// Returns out and lse1 of attention_forward. Both have gradients, whereas the operator's lse1 has
/// none.
Partial partial_attention(const HeadTensors& h) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("diffattn::attention_forward", "");
  const std::map<std::string, c10::IValue> given{{"q1", h.q1},
                                                 {"q2", h.q2},
                                                 {"k1", h.k1},
                                                 {"k2", h.k2},
                                                 {"v", h.v},
                                                 {"lam", h.lambda},
                                                 {"scale", h.options.scale()},
                                                 {"causal", h.options.causal()},
                                                 {"window", h.options.window()},
                                                 {"window_left", h.options.window_left()},
                                                 {"window_right", h.options.window_right()},
                                                 {"mask", h.options.mask()},
                                                 {"key_starts", h.options.key_starts()},
                                                 {"key_lengths", h.options.key_lengths()},
                                                 {"cu_seqlens_q", h.options.cu_seqlens_q()},
                                                 {"cu_seqlens_k", h.options.cu_seqlens_k()}};
  torch::jit::Stack stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto found = given.find(argument.name());
    stack.push_back(found != given.end() ? found->second : argument.default_value().value());
  }
  op.callBoxed(stack);
  const Tensor out = stack.at(0).toTensor();
  Tensor lse = stack.at(1).toTensor().transpose(-1, -2);  // [B, H, M] -> [B, M, H]
  if (at::GradMode::is_enabled() && (h.q1.requires_grad() || h.k1.requires_grad())) {
    // d lse / d score is the map. So z = scale q . (map k), with a constant map, has the gradients
    // of lse: scale map k for q, and scale map^T q for k.
    const Tensor q = h.q1.detach(), k = h.k1.detach();
    const Tensor mean_key = attention(q, q, k, k, h.k1, h.lambda, h.options);
    const double scale =
        h.options.scale().value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
    const Tensor z = scale * (h.q1 * mean_key).sum(-1).to(lse.scalar_type());
    lse = lse + (z - z.detach());
  }
  return {out, lse};
}

Tensor merged(const Tensor& q, const Tensors& ks, const Tensors& vs,
              const AttentionOptions& options) {
  Tensors outs, lses;
  for (size_t j = 0; j < ks.size(); ++j) {
    const Partial part = partial_attention(single_map(q, ks[j], vs[j], options));
    outs.push_back(part.out);
    // A row that sees no key in one path sees none in any. Its o_j are all 0, so it needs only
    // finite weights.
    lses.push_back(part.lse.masked_fill(part.lse == -INFINITY, 0.0));
  }
  const Tensor weights = torch::stack(lses).softmax(0).unsqueeze(-1);  // [paths, B, M, H, 1]
  return (weights * torch::stack(outs)).sum(0).to(q.scalar_type());
}

Tensor unpacked(BankSchedule schedule, const Tensor& q, const Tensors& ks, const Tensors& vs,
                const AttentionOptions& options) {
  return schedule == BankSchedule::kNaive ? naive(q, ks, vs, options)
                                          : concatenated(q, ks, vs, options);
}

}  // namespace

HeadTensors bank_call(const Tensor& q, const Tensors& ks, const Tensors& vs,
                      const AttentionOptions& options) {
  const int64_t paths = bank_size(ks);
  AttentionOptions result = bank_options(options, paths);
  std::optional<Tensor> mask;
  if (options.mask()) mask = widen_mask(*options.mask(), paths);
  if (const Window bounds = options.bounds(); bounds != Window{}) {
    mask = combine(block_mask(q.size(1), ks[0].size(1), paths, bounds, q.device()), mask);
  }
  return single_map(q, interleave(ks), interleave(vs), result.mask(mask));
}

Tensor bank_attention(BankSchedule schedule, const Tensor& q, const Tensors& ks, const Tensors& vs,
                      const AttentionOptions& options) {
  if (ks.empty() || ks.size() != vs.size()) {
    throw_argument_error("vs", "as many tensors as ks, at least 1", std::to_string(vs.size()));
  }
  if (ks.size() == 1) return attend(Route::kFused, single_map(q, ks[0], vs[0], options));
  if (schedule == BankSchedule::kFlash2) return merged(q, ks, vs, options);
  if (!options.cu_seqlens_q()) return unpacked(schedule, q, ks, vs, options);
  // We compute packed sequences one by one. by_path[j][b] is sequence b of path j.
  std::vector<std::vector<HeadTensors>> by_path;
  for (size_t j = 0; j < ks.size(); ++j) {
    by_path.push_back(sequences(single_map(q, ks[j], vs[j], options)));
  }
  Tensors parts;
  for (size_t b = 0; b < by_path[0].size(); ++b) {
    Tensors k, v;
    for (const auto& path : by_path) {
      k.push_back(path[b].k1);
      v.push_back(path[b].v);
    }
    const HeadTensors& one = by_path[0][b];
    parts.push_back(unpacked(schedule, one.q1, k, v, one.options).squeeze(0));
  }
  return parts.empty() ? q.new_empty({0, q.size(1), vs[0].size(2)}) : torch::cat(parts, 0);
}

}  // namespace diffattn::nn
