// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>

#include "diffattn/nn/model_config.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/run_config.h"

namespace diffattn::train {

/// Counts the floating-point operations of a training step, forward and backward: 6 per matrix
/// element and token, and per layer 12 * heads * head_dim for each pair of tokens that the mask
/// allows. Two maps with half of the heads each cost as much as one map with all heads.
/// Recomputation by activation checkpointing does not count.
class FlopCounter {
 public:
  FlopCounter(const torch::nn::Module& model, const nn::ModelConfig& config);

  /// Returns the operations for one batch, which is on the CPU so that no synchronisation is
  /// needed. Sliding windows and explicit masks are not taken into account.
  double training(const Batch& batch) const;

 private:
  nn::ModelConfig config_;
  double encoder_elements_ = 0;  // matrix elements of the encoder
  double elements_ = 0;          // all other matrix elements
};

/// Measures the FLOP/s of large matrix products on a device in about 50 ms. On a CPU the number is
/// that of torch's threads on a machine without other work, even if other programs run.
double measured_product_speed(torch::Device device, torch::ScalarType type);

/// Returns the same for "float32" or "bfloat16". Only the first call measures.
double product_speed(torch::Device device, const std::string& dtype);

/// Estimates the operations of one update from the sizes in a resolved config, with rows of
/// train.seq_len tokens under a causal mask.
double estimate_update_flops(const RunConfig& config, int64_t parameters);

}  // namespace diffattn::train
