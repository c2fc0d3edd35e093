// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "diffattn/nn/decoder.h"
#include "infer/paged_cache.h"
#include "infer/step_buffers.h"
#include "nn/attention/step_attention.h"
#include "nn/parts/pre_norm_layer.h"
#include "ops/layers/token_step.h"

namespace diffattn::infer {

/// A model whose steps the kernels of `kernels/token_step.h` compute, with its parameters where
/// they are.
class StepModel {
 public:
  /// Returns none, and the reason, if the kernels do not support the model.
  static std::optional<StepModel> make(nn::CausalLMImpl& model, std::string& reason);

  const StepWidths& widths() const { return widths_; }
  const CachedToken& cached_token() const { return cached_; }
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  torch::TensorOptions options() const { return embedding_.options(); }

  /// Makes rotary tables for positions below `count`. Returns true if they moved.
  bool reserve_positions(int64_t count);

  /// Returns keys of a prefill, [T, key_heads, D], as the cache holds them: [T, kv_heads, keys, D].
  torch::Tensor cached_keys(const torch::Tensor& k) const;
  /// The inverse of `cached_keys`.
  torch::Tensor module_keys(const torch::Tensor& k) const;

  const ops::TokenStep& kernels() const { return *kernels_; }

  /// Enqueues a step of the first `rows` rows, whose sequences have at most `capacity` tokens.
  size_t workspace_bytes(const StepBuffers& buffers, const PagedCache& cache, int64_t rows,
                         int64_t capacity) const;
  void enqueue(const StepBuffers& buffers, const PagedCache& cache, int64_t rows, int64_t capacity,
               void* workspace, token::Stream stream) const;

 private:
  struct Layer {
    nn::StepAttention attention = {};
    torch::Tensor input_norm = {}, post_norm = {};
    torch::Tensor head_norm = {};  // [Dv] float32; undefined = ones
    nn::StepAttention::Map gate = {}, up = {}, down = {};
    nn::PolyNorm poly{nullptr};   // the activation; null: silu
    nn::RotaryTable angles = {};  // [positions, width / 2]; layers with equal tables share them
  };

  StepModel() = default;
  /// Return none, and the reason, if the kernels do not support the layer.
  static std::optional<Layer> layer_of(nn::StackLayer& layer, std::string& reason);
  static std::optional<Layer> layer_of(nn::DiffBlockImpl& block, std::string& reason);
  static std::optional<Layer> layer_of(nn::PreNormLayerImpl& layer, std::string& reason);
  static bool take_attention(nn::AttentionLayer& attention, Layer& layer, std::string& reason);
  std::string unsupported() const;
  void set_sizes();
  token::Projection projection(const Layer& layer, const StepBuffers& buffers) const;
  ForwardParams attention_params(int64_t layer, const StepBuffers& buffers, const PagedCache& cache,
                                 int64_t rows, int64_t capacity) const;

  const ops::TokenStep* kernels_ = nullptr;
  torch::Tensor embedding_, last_norm_, head_, q_slots_;
  float norm_eps_ = 0.0f;
  std::vector<Layer> layers_;
  StepWidths widths_;
  CachedToken cached_;
  int64_t positions_ = 0;
};

}  // namespace diffattn::infer
