// SPDX-License-Identifier: Apache-2.0
#include "nn/parts/mamba.h"

#include <cmath>

#include "diffattn/ops_layers.h"
#include "ops/layers/selective_scan.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

constexpr size_t kConvState = 0, kScanState = 1;

torch::nn::Linear make_map(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

Tensor mapped(const torch::nn::Linear& map, const Tensor& x) {
  return diffattn::linear(x, map->weight, map->bias);
}

void check_size(const char* name, int64_t size) {
  if (size < 1) throw_argument_error(name, "at least 1", std::to_string(size));
}

/// Returns 1 for real tokens and 0 for padding on the left, [B, M, 1]; undefined without padding.
Tensor real_tokens(const AttentionInput& input) {
  const auto& starts = input.mask.key_starts();
  if (!starts) return {};
  const int64_t before = input.cache != nullptr ? input.cache->length() : 0;
  const Tensor columns = torch::arange(before, before + input.x.size(1), starts->options());
  return (columns.unsqueeze(0) >= starts->unsqueeze(1)).unsqueeze(-1).to(input.x.dtype());
}

/// Returns [1, total] bool: true for the first token of each packed sequence; undefined without.
Tensor sequence_starts(const AttentionInput& input) {
  const auto& offsets = input.mask.cu_seqlens_q();
  if (!offsets) return {};
  const int64_t total = input.x.size(0);
  const Tensor starts = torch::zeros({total + 1}, offsets->options().dtype(torch::kBool));
  starts.index_fill_(0, offsets->to(torch::kLong), true);  // an empty sequence may end at `total`
  return starts.narrow(0, 0, total).unsqueeze(0);
}

/// Returns x [B, M, E] multiplied by [B, M, 1], or x.
Tensor masked(const Tensor& x, const Tensor& real) { return real.defined() ? x * real : x; }

}  // namespace

MambaImpl::MambaImpl(const MambaOptions& given)
    : options(given),
      inner(given.inner().value_or(2 * given.dim())),
      rank(given.rank().value_or((given.dim() + 15) / 16)) {
  check_size("dim", options.dim());
  check_size("inner", inner);
  check_size("state", options.state());
  check_size("taps", options.taps());
  check_size("rank", rank);
  in_proj = register_module("in_proj", make_map(options.dim(), 2 * inner, options.proj_bias()));
  const auto conv = register_module("conv1d", std::make_shared<torch::nn::Module>("conv1d"));
  conv_weight = conv->register_parameter("weight", torch::empty({inner, 1, options.taps()}));
  if (options.conv_bias()) conv_bias = conv->register_parameter("bias", torch::empty({inner}));
  x_proj = register_module("x_proj", make_map(inner, rank + 2 * options.state(), false));
  dt_proj = register_module("dt_proj", make_map(rank, inner, true));
  A_log = register_parameter("A_log", torch::empty({inner, options.state()}));
  D = register_parameter("D", torch::empty({inner}));
  out_proj = register_module("out_proj", make_map(inner, options.dim(), options.proj_bias()));
  draw_own_parameters();
}

/// A = -(1, ..., state) in every channel, D = 1, and a bias that makes step sizes between 0.001 and
/// 0.1, as in Mamba.
void MambaImpl::draw_own_parameters() {
  const torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(options.taps()));
  conv_weight.uniform_(-bound, bound);
  if (conv_bias.defined()) conv_bias.uniform_(-bound, bound);
  for (int64_t n = 0; n < options.state(); ++n) A_log.select(1, n).fill_(std::log(n + 1));
  D.fill_(1.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(rank));
  dt_proj->weight.uniform_(-scale, scale);
  Tensor& bias = dt_proj->bias;
  bias.uniform_(std::log(1e-3), std::log(1e-1)).exp_().expm1_().log_();  // inverse of softplus
}

/// The causal convolution of each channel, over `taps` tokens of u [B, M, inner] and of the cache.
Tensor MambaImpl::convolved(const Tensor& u, const AttentionInput& input, const Tensor& starts) {
  const int64_t earlier = options.taps() - 1, tokens = u.size(1);
  const Tensor state = input.cache != nullptr ? input.cache->state(kConvState) : Tensor();
  const Tensor before = state.defined() ? state : u.new_zeros({u.size(0), earlier, inner});
  const Tensor all = torch::cat({before, u}, 1);
  if (input.cache != nullptr) {
    input.cache->set_state(kConvState, all.narrow(1, tokens, earlier).clone());
  }
  const Tensor weight = conv_weight.squeeze(1).t();  // [taps, inner]
  Tensor sum = u * weight[earlier];
  Tensor alike;  // [1, M, 1]: 1 where the tap reads a token of the same packed sequence
  for (int64_t back = 1; back <= earlier; ++back) {
    Tensor tap = all.narrow(1, earlier - back, tokens);
    if (starts.defined()) {
      const Tensor inside = starts.logical_not().to(u.dtype()).unsqueeze(-1);
      const Tensor moved = alike.defined() ? torch::constant_pad_nd(alike.narrow(1, 0, tokens - 1),
                                                                    {0, 0, 1, 0}, 0.0)
                                           : torch::ones_like(inside);
      alike = inside * moved;
      tap = tap * alike;
    }
    sum = torch::addcmul(sum, tap, weight[earlier - back]);
  }
  return torch::silu(conv_bias.defined() ? sum + conv_bias : sum).to(u.scalar_type());
}

Tensor MambaImpl::forward(const AttentionInput& input, AttentionTrace* /*trace*/) {
  const bool packed = input.mask.cu_seqlens_q().has_value();
  if (input.x.dim() != (packed ? 2 : 3) || input.x.size(-1) != options.dim()) {
    throw_argument_error("x", c10::str(packed ? "[total, " : "[B, M, ", options.dim(), "]"),
                         c10::str("shape ", input.x.sizes()));
  }
  if (packed && input.cache != nullptr) {
    throw_argument_error("cache", "none with packed sequences", "one");
  }
  if (options.shares_memory() && input.shared == nullptr) {
    throw_argument_error("shared", "the tensors that the layers of a stack share", "none");
  }
  const Tensor real = real_tokens(input), starts = sequence_starts(input);
  const Tensor rows = packed ? input.x.unsqueeze(0) : input.x;
  const auto halves = mapped(in_proj, rows).chunk(2, -1);
  const Tensor u = masked(convolved(masked(halves[0], real), input, starts), real);
  const auto parts = mapped(x_proj, u).split({rank, options.state(), options.state()}, -1);
  auto scan = ScanOptions();
  if (starts.defined()) scan.starts(starts);
  if (input.cache != nullptr && input.cache->state(kScanState).defined()) {
    scan.state(input.cache->state(kScanState));
  }
  const auto wide = u.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto [y, state] = selective_scan(u, mapped(dt_proj, parts[0]), -A_log.to(wide).exp(),
                                         parts[1], parts[2], D.to(wide), scan);
  if (input.cache != nullptr) {
    input.cache->set_state(kScanState, state);
    input.cache->advance(rows.size(1));
  }
  if (options.shares_memory()) input.shared->memory = packed ? y.squeeze(0) : y;
  const Tensor out = mapped(out_proj, swiglu(halves[1], y));
  return packed ? out.squeeze(0) : out;
}

GatedMemoryImpl::GatedMemoryImpl(int64_t dim, int64_t inner, bool bias) {
  check_size("dim", dim);
  check_size("inner", inner);
  in_proj = register_module("in_proj", make_map(dim, inner, bias));
  out_proj = register_module("out_proj", make_map(inner, dim, bias));
}

Tensor GatedMemoryImpl::forward(const AttentionInput& input, AttentionTrace* /*trace*/) {
  if (input.shared == nullptr || !input.shared->memory.defined()) {
    throw_argument_error("shared.memory", "the memory of a Mamba layer", "none");
  }
  const Tensor gate = mapped(in_proj, input.x);
  if (gate.sizes() != input.shared->memory.sizes()) {
    throw_argument_error("shared.memory", c10::str("shape ", gate.sizes()),
                         c10::str("shape ", input.shared->memory.sizes()));
  }
  return mapped(out_proj, swiglu(gate, input.shared->memory));
}

}  // namespace diffattn::nn
