// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "ops/dispatch/attention_checkpoint.h"

namespace diffattn::nn {

/// The fused attention calls of one run of a layer, in order: while it lives, those of this thread
/// go through it. The first run collects what each call leaves for the second, which must make the
/// same calls.
class KeptCalls {
 public:
  /// A first run, without gradients.
  explicit KeptCalls(KeepAttention keep);
  /// The second run, with what `tensors` gave after the first.
  explicit KeptCalls(std::vector<torch::Tensor> tensors);
  KeptCalls(const KeptCalls&) = delete;
  KeptCalls& operator=(const KeptCalls&) = delete;
  ~KeptCalls();

  /// This thread's innermost one, or null.
  static KeptCalls* current();

  torch::Tensor attend(const HeadTensors& heads);

  /// What a first run has kept: the same number of tensors per call, undefined where it has none.
  const std::vector<torch::Tensor>& tensors() const { return tensors_; }

 private:
  KeepAttention keep_ = KeepAttention::kNothing;
  bool again_ = false;
  size_t next_ = 0;  // of tensors_, in a second run
  std::vector<torch::Tensor> tensors_;
  KeptCalls* outer_ = nullptr;
};

}  // namespace diffattn::nn
