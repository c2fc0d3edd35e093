// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "diffattn/ops_layers.h"

namespace diffattn::nn {

/// Which two elements of a head turn together.
enum class RotaryStyle {
  kNone,
  kInterleaved,  // (0, 1), (2, 3), ...: Microsoft
  kHalfSplit,    // (i, i + width / 2): Hugging Face
};

/// How frequencies are changed for contexts longer than the training ones: `rope_type` of Hugging
/// Face's `rope_parameters`, and `type` or `rope_type` of the older `rope_scaling`.
enum class RotaryScaling { kNone, kLinear, kDynamic, kLlama3 };

/// "default", "linear", "dynamic" or "llama3"; throws for other names.
RotaryScaling rotary_scaling(const std::string& name);

struct RotaryOptions {
  TORCH_ARG(RotaryStyle, style) = RotaryStyle::kNone;
  TORCH_ARG(double, theta) = 10000.0;
  /// Only the first `width` elements of a head turn. Default: all of them.
  TORCH_ARG(std::optional<int64_t>, width);
  TORCH_ARG(RotaryScaling, scaling) = RotaryScaling::kNone;
  TORCH_ARG(double, factor) = 1.0;
  /// Llama-3: wavelengths above L / low_freq_factor are stretched, those below L / high_freq_factor
  /// kept, L = original_max_position.
  TORCH_ARG(double, low_freq_factor) = 1.0;
  TORCH_ARG(double, high_freq_factor) = 4.0;
  /// The context length of training. Dynamic scaling starts beyond it; keys that a cache already
  /// holds keep the angles of their time, as in Hugging Face's models.
  TORCH_ARG(int64_t, original_max_position) = 8192;
};

/// cos and sin of every angle, [N, width / 2] or, with positions of their own per batch row,
/// [B, N, width / 2]. Undefined for RotaryStyle::kNone.
struct RotaryTable {
  torch::Tensor cos, sin;
};

/// Rotary position embedding. Tables are float32 (float64 for float64 heads), as is the arithmetic;
/// the result has the type of the heads. It has no parameters and nothing to save.
class RotaryImpl : public torch::nn::Module {
 public:
  /// Throws for an odd or too large width, and scaling parameters that have no meaning.
  RotaryImpl(int64_t head_dim, RotaryOptions options);

  /// Positions offset, ..., offset + length - 1, from a table that grows as needed. `like` gives
  /// device and type. Not for two threads at once.
  RotaryTable table(int64_t offset, int64_t length, const torch::TensorOptions& like);

  /// Positions [N] or [B, N] (packed sequences: [total]), any integers. With dynamic scaling this
  /// reads the largest one back to the host.
  RotaryTable table(const torch::Tensor& positions, const torch::TensorOptions& like) const;

  /// How `rotate` turns; width 0 for RotaryStyle::kNone.
  RotateOptions rotation() const;

  /// heads [B, N, H, D], or [total, H, D] with a table [total, width / 2].
  torch::Tensor rotate(const torch::Tensor& heads, const RotaryTable& table) const;

  const RotaryOptions options;

 private:
  torch::Tensor frequencies(int64_t length, const torch::TensorOptions& options) const;
  RotaryTable angles(const torch::Tensor& positions, int64_t length) const;

  int64_t width_;
  RotaryTable cached_;              // positions 0, 1, ...
  int64_t cached_frequencies_ = 0;  // the sequence length that `cached_` was made for
};
TORCH_MODULE(Rotary);

}  // namespace diffattn::nn
