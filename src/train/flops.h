// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>

#include "diffattn/nn/model_config.h"
#include "diffattn/train/batch.h"

namespace diffattn::train {

/// The floating-point operations that a training step needs, forward and backward: 6 for every
/// matrix element a token passes through, 12 times the heads' width for every pair of tokens of
/// which one may see the other, in each layer. Two maps of half as many heads cost what one map of
/// all heads costs. What is computed again for want of memory does not count.
class FlopCounter {
 public:
  FlopCounter(const torch::nn::Module& model, const nn::ModelConfig& config);

  /// Of one batch (on the CPU, so that packed lengths need no wait), without windows and masks.
  double training(const Batch& batch) const;

 private:
  nn::ModelConfig config_;
  double encoder_elements_ = 0;  // of matrices that source tokens pass through
  double elements_ = 0;          // of all other matrices
};

/// FLOP/s that large matrix products reach on this device in this type ("float32" or "bfloat16"):
/// measured at the first call, some 50 ms, and kept.
double product_speed(torch::Device device, const std::string& dtype);

}  // namespace diffattn::train
