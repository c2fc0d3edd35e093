// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <variant>

#include "diffattn/nn/rms_norm.h"

namespace diffattn::nn {

class ResidualStream;

/// A norm of the residual stream: RMSNorm, or LayerNorm with a bias.
class StreamNorm {
 public:
  StreamNorm() = default;
  /*implicit*/ StreamNorm(RMSNorm norm) : norm_(std::move(norm)) {}
  /*implicit*/ StreamNorm(torch::nn::LayerNorm norm) : norm_(std::move(norm)) {}

  /// Returns the norm in the type of the next products, as ResidualStream::normed().
  torch::Tensor of(ResidualStream& stream);
  /// Returns the norm at least in the stream's type, also inside autocast.
  torch::Tensor in_full(ResidualStream& stream);

  /// Returns the module, for a parent to register.
  std::shared_ptr<torch::nn::Module> module() const;
  /// Returns the RMSNorm; null if it is a LayerNorm.
  RMSNorm rms() const;

 private:
  std::variant<RMSNorm, torch::nn::LayerNorm> norm_{RMSNorm(nullptr)};
};

}  // namespace diffattn::nn
