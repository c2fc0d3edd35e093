// SPDX-License-Identifier: Apache-2.0
#include "nn/attention/inputs.h"

#include <ostream>
#include <sstream>

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Returns the position of each token in its packed sequence, [total].
Tensor positions_in_sequences(const Tensor& cu_seqlens, int64_t total) {
  const Tensor offsets = cu_seqlens.to(torch::kLong);
  const Tensor starts = offsets.slice(0, 0, -1).repeat_interleave(offsets.diff(), 0, total);
  return torch::arange(total, offsets.options()) - starts;
}

/// True if the axes are those of the tokens of x: [B, M] or [M]; packed [total].
bool are_tokens_of(torch::IntArrayRef axes, const Tensor& x) {
  const torch::IntArrayRef tokens = x.sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  return axes == tokens || (x.dim() == 3 && axes == tokens.slice(1));
}

void check_positions(const Tensor& positions, const Tensor& x) {
  if (positions.defined() && are_tokens_of(positions.sizes(), x)) return;
  throw_argument_error("positions", "one for each token of x " + shape(x),
                       positions.defined() ? shape(positions) : "none");
}

void check_angles(const RotaryTable& angles, const Tensor& x, int64_t width) {
  const auto check = [&](const char* name, const Tensor& t) {
    const bool fits = t.defined() && t.dim() > 0 && t.size(-1) == width / 2 &&
                      are_tokens_of(t.sizes().slice(0, static_cast<size_t>(t.dim() - 1)), x);
    if (fits && t.device() == x.device()) return;
    throw_argument_error(name,
                         "a row of " + std::to_string(width / 2) + " for each token of x " +
                             shape(x) + " on " + x.device().str(),
                         t.defined() ? shape(t) + " on " + t.device().str() : "none");
  };
  check("angles.cos", angles.cos);
  check("angles.sin", angles.sin);
  if (angles.cos.sizes() == angles.sin.sizes() &&
      angles.cos.scalar_type() == angles.sin.scalar_type()) {
    return;
  }
  throw_argument_error("angles.sin", "the shape and type of angles.cos",
                       shape(angles.sin) + " " + c10::toString(angles.sin.scalar_type()));
}

}  // namespace

std::string shape(const Tensor& tensor) {
  std::ostringstream out;
  out << "shape " << tensor.sizes();
  return out.str();
}

RotaryTable rotary_table(RotaryImpl& rotary, const AttentionInput& input) {
  if (rotary.options.style() == RotaryStyle::kNone) return {};
  if (input.angles) {
    check_angles(*input.angles, input.x, rotary.rotation().width);
    return *input.angles;
  }
  const auto like = input.x.options();
  if (input.positions) {
    check_positions(*input.positions, input.x);
    return rotary.table(*input.positions, like);
  }
  if (const auto& offsets = input.mask.cu_seqlens_q()) {
    return rotary.table(positions_in_sequences(*offsets, input.x.size(0)), like);
  }
  const int64_t offset = input.cache != nullptr ? input.cache->length() : 0;
  return rotary.table(offset, input.x.size(1), like);
}

AttentionMask in_view(const AttentionMask& mask, int64_t dropped) {
  AttentionMask view = mask;
  if (dropped == 0) return view;
  const auto moved = [&](const std::optional<Tensor>& keys) {
    return keys ? std::optional((*keys - dropped).clamp_min(0)) : std::nullopt;
  };
  view.key_starts(moved(mask.key_starts())).key_lengths(moved(mask.key_lengths()));
  if (mask.mask() && mask.mask()->size(-1) > 1) view.mask(mask.mask()->slice(-1, dropped));
  return view;
}

AttentionOptions mask_options(const AttentionMask& mask, bool causal,
                              std::optional<int64_t> window) {
  const bool is_causal = mask.causal().value_or(causal);
  const auto width = mask.window() ? mask.window() : window;
  if (width && !is_causal) {
    throw_argument_error("mask.window", "none with bidirectional attention",
                         std::to_string(*width));
  }
  return AttentionOptions()
      .causal(is_causal)
      .window(width)
      .mask(mask.mask())
      .key_starts(mask.key_starts())
      .key_lengths(mask.key_lengths())
      .cu_seqlens_q(mask.cu_seqlens_q())
      .cu_seqlens_k(mask.cu_seqlens_k() ? mask.cu_seqlens_k() : mask.cu_seqlens_q());
}

}  // namespace diffattn::nn
