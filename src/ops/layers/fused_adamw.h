// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

namespace diffattn {

/// A parameter for `FusedAdamW`. Parameter and moments are float32 and contiguous.
struct AdamWParameter {
  torch::Tensor parameter = {}, exp_avg = {}, exp_avg_sq = {};
  torch::Tensor step = {};  // []: the number of updates so far, float32
  torch::Tensor copy = {};  // bfloat16 copy, written with the parameter; undefined: none
  double weight_decay = 0.0;
};

/// The numbers of an update.
struct AdamWUpdate {
  double learning_rate = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double max_norm = 0.0;  // clips the norm of all gradients; 0: no clipping
};

/// AdamW on a GPU: norm, clipping and update of all parameters in three kernels, between which the
/// host does not wait.
class FusedAdamW {
 public:
  /// True if there are kernels for these parameters: all in one type on one GPU.
  static bool takes(const std::vector<AdamWParameter>& parameters);

  explicit FusedAdamW(std::vector<AdamWParameter> parameters);

  /// Updates the parameters whose gradient is defined (float32 or bfloat16). If `loss` (float64
  /// scalar on the GPU) or the norm is not finite, nothing changes. Returns the norm of all
  /// gradients before clipping, a float32 scalar on the GPU.
  torch::Tensor step(const std::vector<torch::Tensor>& gradients, const torch::Tensor& loss,
                     const AdamWUpdate& update);

 private:
  std::vector<AdamWParameter> parameters_;
  torch::Tensor chunks_;            // the work of each thread block
  torch::Tensor partial_, factor_;  // workspace
  int64_t chunk_count_ = 0;
};

}  // namespace diffattn
