// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

class ResidualStream;

/// Receives a call before and after a layer uses its parameters, so that it can load and free them.
class LayerWatcher {
 public:
  virtual ~LayerWatcher() = default;
  virtual void before_forward() = 0;
  virtual void after_forward() = 0;
  /// The stack may call it more than once in one backward pass.
  virtual void before_backward() = 0;
};

/// Base class of the layers of a stack. A layer adds the results of its branches to the residual
/// stream: of a part that mixes tokens, and of a feed-forward layer.
class StackLayer : public torch::nn::Module {
 public:
  /// Runs the layer on the stream; the x of both inputs is not read. `cross` is null without
  /// cross-attention. Appends to the traces if they are not null.
  virtual void run(ResidualStream& stream, const AttentionInput& input, const AttentionInput* cross,
                   AttentionTrace* trace, AttentionTrace* cross_trace) = 0;

  std::shared_ptr<AttentionLayer> self_attn;   // or the layer in its place
  std::shared_ptr<AttentionLayer> cross_attn;  // null without
  std::shared_ptr<LayerWatcher> watcher;       // null without; the stack calls it
};

}  // namespace diffattn::nn
