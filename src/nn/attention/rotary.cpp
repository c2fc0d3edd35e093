// SPDX-License-Identifier: Apache-2.0
//
// An angle is position * frequency, with frequency i = theta^(-2i / width). We compute it in
// float32 as the published models do, so that long contexts get the same rounded angles.

#include "diffattn/nn/rotary.h"

#include <algorithm>
#include <cmath>

#include "diffattn/ops.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

void check_options(int64_t head_dim, const RotaryOptions& options) {
  const int64_t width = options.width().value_or(head_dim);
  if (width < 2 || width > head_dim || width % 2 != 0) {
    throw_argument_error("rotary.width",
                         "an even number from 2 to the head width " + std::to_string(head_dim),
                         std::to_string(width));
  }
  const auto positive = [](const char* name, double value) {
    if (!(value > 0.0) || !std::isfinite(value)) {
      throw_argument_error(name, "a positive number", std::to_string(value));
    }
  };
  positive("rotary.rope_theta", options.rope_theta());
  if (options.rope_type() == RotaryScaling::kNone) return;
  positive("rotary.factor", options.factor());
  positive("rotary.original_max_position_embeddings",
           static_cast<double>(options.original_max_position_embeddings()));
  if (options.rope_type() == RotaryScaling::kDynamic && width == 2) {
    throw_argument_error("rotary.width", "more than 2 with dynamic scaling", "2");
  }
  if (options.rope_type() == RotaryScaling::kLlama3) {
    positive("rotary.low_freq_factor", options.low_freq_factor());
    if (!(options.high_freq_factor() > options.low_freq_factor())) {
      throw_argument_error("rotary.high_freq_factor",
                           "more than low_freq_factor " + std::to_string(options.low_freq_factor()),
                           std::to_string(options.high_freq_factor()));
    }
  }
}

/// Returns theta of dynamic (NTK) scaling, which grows with a sequence beyond the training length.
double dynamic_theta(const RotaryOptions& options, int64_t width, int64_t length) {
  const auto trained = static_cast<double>(options.original_max_position_embeddings());
  const double seen = std::max(static_cast<double>(length), trained);
  const double stretch = options.factor() * seen / trained - (options.factor() - 1.0);
  const auto w = static_cast<double>(width);
  return options.rope_theta() * std::pow(stretch, w / (w - 2.0));
}

/// Llama-3: stretches long wavelengths by `factor`, leaves short ones, and interpolates in between.
Tensor llama3_frequencies(const Tensor& frequency, const RotaryOptions& options) {
  const auto trained = static_cast<double>(options.original_max_position_embeddings());
  const Tensor wavelength = 2.0 * M_PI / frequency;
  const Tensor smooth = (trained / wavelength - options.low_freq_factor()) /
                        (options.high_freq_factor() - options.low_freq_factor());
  const Tensor between = (1.0 - smooth) * frequency / options.factor() + smooth * frequency;
  const Tensor slow = torch::where(wavelength > trained / options.low_freq_factor(),
                                   frequency / options.factor(), between);
  return torch::where(wavelength < trained / options.high_freq_factor(), frequency, slow);
}

torch::ScalarType table_type(const torch::TensorOptions& like) {
  return like.dtype() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace

RotaryScaling rotary_scaling(const std::string& name) {
  if (name == "default") return RotaryScaling::kNone;
  if (name == "linear") return RotaryScaling::kLinear;
  if (name == "dynamic") return RotaryScaling::kDynamic;
  if (name == "llama3") return RotaryScaling::kLlama3;
  throw_argument_error("rope_type", "default, linear, dynamic or llama3", "'" + name + "'");
}

RotaryImpl::RotaryImpl(int64_t head_dim, RotaryOptions given)
    : options(given), width_(given.width().value_or(head_dim)) {
  if (options.style() != RotaryStyle::kNone) check_options(head_dim, options);
}

Tensor RotaryImpl::frequencies(int64_t length, const torch::TensorOptions& tensor_options) const {
  const double theta = options.rope_type() == RotaryScaling::kDynamic
                           ? dynamic_theta(options, width_, length)
                           : options.rope_theta();
  const Tensor exponent = torch::arange(0, width_, 2, tensor_options) / static_cast<double>(width_);
  const Tensor frequency = 1.0 / torch::pow(theta, exponent);
  if (options.rope_type() == RotaryScaling::kLinear) return frequency / options.factor();
  if (options.rope_type() == RotaryScaling::kLlama3) return llama3_frequencies(frequency, options);
  return frequency;
}

RotaryTable RotaryImpl::angles(const Tensor& positions, int64_t length) const {
  const Tensor angle =
      positions.unsqueeze(-1) * frequencies(length, positions.options());  // [..., width / 2]
  return {angle.cos(), angle.sin()};
}

RotaryTable RotaryImpl::table(int64_t offset, int64_t length, const torch::TensorOptions& like) {
  if (options.style() == RotaryStyle::kNone) return {};
  const c10::InferenceMode off(false);  // training may reuse a table made during generation
  const torch::NoGradGuard no_grad;
  const int64_t needed = offset + length;
  const auto tensor_options = torch::TensorOptions().device(like.device()).dtype(table_type(like));
  const bool dynamic = options.rope_type() == RotaryScaling::kDynamic;
  const int64_t made_for =
      dynamic ? std::max(needed, options.original_max_position_embeddings()) : 0;
  const bool usable = cached_.cos.defined() && cached_.cos.size(0) >= needed &&
                      cached_.cos.device() == like.device() &&
                      cached_.cos.scalar_type() == table_type(like) &&
                      cached_frequencies_ == made_for;
  if (!usable) {
    constexpr int64_t kChunk = 512;
    const int64_t rows = (needed + kChunk - 1) / kChunk * kChunk;
    cached_ = angles(torch::arange(rows, tensor_options), made_for);
    cached_frequencies_ = made_for;
  }
  return {cached_.cos.narrow(0, offset, length), cached_.sin.narrow(0, offset, length)};
}

RotaryTable RotaryImpl::table(const Tensor& positions, const torch::TensorOptions& like) const {
  if (options.style() == RotaryStyle::kNone) return {};
  const torch::NoGradGuard no_grad;
  const bool dynamic = options.rope_type() == RotaryScaling::kDynamic && positions.numel() > 0;
  const int64_t length = dynamic ? positions.max().item<int64_t>() + 1 : 0;
  return angles(positions.to(like.device(), table_type(like)), length);
}

Tensor RotaryImpl::rotate(const Tensor& heads, const RotaryTable& table) const {
  if (options.style() == RotaryStyle::kNone) return heads;
  return diffattn::rotate(heads, table.cos, table.sin, rotation());
}

RotateOptions RotaryImpl::rotation() const {
  return {.width = options.style() == RotaryStyle::kNone ? 0 : width_,
          .interleaved = options.style() == RotaryStyle::kInterleaved};
}

}  // namespace diffattn::nn
