// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <utility>

#include "diffattn/nn/rms_norm.h"

namespace diffattn::nn {

/// The residual stream of a stack of blocks: the running sum to which every branch (attention,
/// feed-forward layer) adds its result. On a GPU it delays each sum until somebody reads it. If a
/// norm reads it, one kernel computes the sum and the norm.
class ResidualStream {
 public:
  explicit ResidualStream(torch::Tensor sum, torch::Tensor pending = {})
      : sum_(std::move(sum)), pending_(std::move(pending)) {}

  /// Adds the result of a branch.
  void add(const torch::Tensor& branch);

  /// Returns the norm of the stream in the type of the next products: inside autocast its type,
  /// else that of the stream.
  torch::Tensor normed(RMSNorm& norm);

  /// Returns a norm of the stream in the type of the next products.
  torch::Tensor for_products(const torch::Tensor& norm) const;

  /// Returns the norm of the stream at least in the stream's type, also inside autocast.
  torch::Tensor normed_in_full(RMSNorm& norm);

  /// Returns the stream itself.
  const torch::Tensor& value();

  /// The two terms of the stream: a sum, and a branch that it does not contain yet or undefined.
  const torch::Tensor& sum() const { return sum_; }
  const torch::Tensor& pending() const { return pending_; }

 private:
  /// Computes the pending sum and the norm with one kernel, if there is one.
  std::optional<torch::Tensor> fused(const RMSNorm& norm, torch::ScalarType type);

  torch::Tensor sum_;
  torch::Tensor pending_;
};

}  // namespace diffattn::nn
