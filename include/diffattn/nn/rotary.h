// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "diffattn/ops_layers.h"

namespace diffattn::nn {

/// The two elements of a head that form a rotated pair.
enum class RotaryStyle {
  kNone,
  kInterleaved,  // (0, 1), (2, 3), ...: Microsoft
  kHalfSplit,    // (i, i + width / 2): Hugging Face
};

/// Scaling of the frequencies for contexts longer than in training: `rope_type` of Hugging Face's
/// `rope_parameters`, and `type` or `rope_type` of the older `rope_scaling`.
enum class RotaryScaling { kNone, kLinear, kDynamic, kLlama3 };

/// Parses "default", "linear", "dynamic" or "llama3"; throws for other names.
RotaryScaling rotary_scaling(const std::string& name);

/// `style` and `width` are ours; the other names are those of `rope_parameters` in config.json.
struct RotaryOptions {
  TORCH_ARG(RotaryStyle, style) = RotaryStyle::kNone;
  TORCH_ARG(double, rope_theta) = 10000.0;
  /// Number of leading elements of a head that rotate. Default: all.
  TORCH_ARG(std::optional<int64_t>, width);
  TORCH_ARG(RotaryScaling, rope_type) = RotaryScaling::kNone;
  TORCH_ARG(double, factor) = 1.0;
  /// Llama-3: stretches wavelengths above L / low_freq_factor and leaves those below
  /// L / high_freq_factor unchanged, with L = original_max_position_embeddings.
  TORCH_ARG(double, low_freq_factor) = 1.0;
  TORCH_ARG(double, high_freq_factor) = 4.0;
  /// Context length of training. Dynamic scaling starts beyond it. Keys in a cache keep the angles
  /// with which they were written, as in Hugging Face's models.
  TORCH_ARG(int64_t, original_max_position_embeddings) = 8192;
};

/// cos and sin of every angle: [N, width / 2], or [B, N, width / 2] if positions differ between
/// batch rows. Undefined for RotaryStyle::kNone.
struct RotaryTable {
  torch::Tensor cos, sin;
};

/// Rotary position embedding. Tables and arithmetic are float32 (float64 for float64 heads); the
/// result has the type of the heads. The module has no parameters and no buffers.
class RotaryImpl : public torch::nn::Module {
 public:
  /// Throws for a width that is odd or too large, and for scaling parameters out of range.
  RotaryImpl(int64_t head_dim, RotaryOptions options);

  /// Returns the angles of positions offset, ..., offset + length - 1, from a cached table that
  /// grows as needed. `like` gives device and type. Not thread-safe.
  RotaryTable table(int64_t offset, int64_t length, const torch::TensorOptions& like);

  /// Returns the angles of positions [N] or [B, N] (packed: [total]), any integers. With dynamic
  /// scaling it copies the largest position to the host.
  RotaryTable table(const torch::Tensor& positions, const torch::TensorOptions& like) const;

  /// Returns the options of `rotate`; width 0 for RotaryStyle::kNone.
  RotateOptions rotation() const;

  /// Rotates heads [B, N, H, D], or [total, H, D] with a table [total, width / 2].
  torch::Tensor rotate(const torch::Tensor& heads, const RotaryTable& table) const;

  const RotaryOptions options;

 private:
  torch::Tensor frequencies(int64_t length, const torch::TensorOptions& options) const;
  RotaryTable angles(const torch::Tensor& positions, int64_t length) const;

  int64_t width_;
  RotaryTable cached_;              // positions 0, 1, ...
  int64_t cached_frequencies_ = 0;  // sequence length of `cached_`, for dynamic scaling
};
TORCH_MODULE(Rotary);

}  // namespace diffattn::nn
