// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <utility>

#include "diffattn/nn/rms_norm.h"

namespace diffattn::nn {

/// The residual stream of a stack of blocks: the running sum to which every branch (attention,
/// feed-forward layer) adds its result. It delays each sum until somebody reads it. If a norm reads
/// it, one kernel computes the sum and the norm.
class ResidualStream {
 public:
  explicit ResidualStream(torch::Tensor x) : sum_(std::move(x)) {}

  /// Adds the result of a branch.
  void add(const torch::Tensor& branch);

  /// Returns the norm of the stream in the type of the next products: inside autocast its type,
  /// else that of the stream.
  torch::Tensor normed(RMSNorm& norm);

  /// Returns the norm of the stream at least in the stream's type, also inside autocast.
  torch::Tensor normed_in_full(RMSNorm& norm);

  /// Returns the stream itself.
  const torch::Tensor& value();

 private:
  /// Computes the pending sum and the norm with one kernel, if there is one.
  std::optional<torch::Tensor> fused(const RMSNorm& norm, torch::ScalarType type);

  torch::Tensor sum_;
  torch::Tensor pending_;  // a branch that sum_ does not contain yet; may be undefined
};

}  // namespace diffattn::nn
