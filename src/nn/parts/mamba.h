// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

struct MambaOptions {
  explicit MambaOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// Channels of the scan. Default: 2 dim.
  TORCH_ARG(std::optional<int64_t>, inner);
  /// Numbers of the state of a channel.
  TORCH_ARG(int64_t, state) = 16;
  /// Taps of the convolution before the scan.
  TORCH_ARG(int64_t, taps) = 4;
  /// Rank of the projection to step sizes. Default: dim / 16, rounded up.
  TORCH_ARG(std::optional<int64_t>, rank);
  TORCH_ARG(bool, conv_bias) = true;
  TORCH_ARG(bool, proj_bias) = false;
  /// Leaves y before the gate in AttentionInput::shared, for GatedMemory layers.
  TORCH_ARG(bool, shares_memory) = false;
};

/// A Mamba-1 layer: u, z = in_proj x; u = silu(conv1d u), over the last `taps` tokens;
/// delta, B, C = x_proj u; y = selective_scan(u, dt_proj delta, -exp(A_log), B, C, D);
/// out_proj(y * silu(z)). It has no attention maps, so traces stay empty.
///
/// The cache holds two states: the last taps - 1 inputs of the convolution, [B, taps - 1, inner],
/// and the state of the scan, [B, inner, state] in float32. Of the masks it reads key_starts and
/// cu_seqlens_q; it is causal, so that right padding needs none. Parameters have Mamba's names:
/// in_proj, conv1d, x_proj, dt_proj, A_log, D, out_proj.
class MambaImpl : public AttentionLayer {
 public:
  /// Throws diffattn::Error for sizes below 1.
  explicit MambaImpl(const MambaOptions& options);
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;

  bool shares_tensors() const override { return options.shares_memory(); }
  void draw_own_parameters() override;

  MambaOptions options;
  const int64_t inner, rank;
  torch::nn::Linear in_proj{nullptr}, x_proj{nullptr}, dt_proj{nullptr}, out_proj{nullptr};
  torch::Tensor conv_weight, conv_bias;  // [inner, 1, taps], [inner]
  torch::Tensor A_log, D;                // [inner, state], [inner]

 private:
  torch::Tensor convolved(const torch::Tensor& u, const AttentionInput& input,
                          const torch::Tensor& starts);
};
TORCH_MODULE(Mamba);

/// A gated memory unit: out_proj(silu(in_proj x) * m), where m is the memory that a Mamba layer
/// left in AttentionInput::shared. It mixes no tokens and has no maps and no cache.
class GatedMemoryImpl : public AttentionLayer {
 public:
  GatedMemoryImpl(int64_t dim, int64_t inner, bool bias);
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;
  bool keeps_cache() const override { return false; }
  bool shares_tensors() const override { return true; }

  torch::nn::Linear in_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(GatedMemory);

}  // namespace diffattn::nn
