// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "ops/dispatch/attention_checkpoint.h"

namespace diffattn::nn {

/// The fused attention calls of one run of a layer under activation checkpointing. While an object
/// lives, the calls of its thread go through it. The first run collects the checkpoint of each
/// call. The second run restores the calls from the checkpoints, so it must make them in the same
/// order.
class CheckpointedCalls {
 public:
  /// The first run, in the forward pass, without gradients.
  explicit CheckpointedCalls(KeepAttention keep);
  /// The second run, in the backward pass. `tensors` are tensors() of the first run.
  explicit CheckpointedCalls(std::vector<torch::Tensor> tensors);
  CheckpointedCalls(const CheckpointedCalls&) = delete;
  CheckpointedCalls& operator=(const CheckpointedCalls&) = delete;
  ~CheckpointedCalls();

  /// Returns the innermost object of this thread, or null.
  static CheckpointedCalls* current();

  torch::Tensor attend(const HeadTensors& heads);

  /// The checkpoints of a first run: the same number of tensors for each call, undefined if the
  /// call did not save them.
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }

 private:
  KeepAttention keep_ = KeepAttention::kNothing;
  bool second_run_ = false;
  size_t next_ = 0;  // index into tensors_ of the next call, in a second run
  std::vector<torch::Tensor> tensors_;
  CheckpointedCalls* outer_ = nullptr;
};

}  // namespace diffattn::nn
