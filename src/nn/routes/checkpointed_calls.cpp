// SPDX-License-Identifier: Apache-2.0
#include "nn/routes/checkpointed_calls.h"

#include <utility>

namespace diffattn::nn {
namespace {

constexpr size_t kTensorsPerCall = 5;  // members of AttentionCheckpoint

CheckpointedCalls*& innermost() {
  thread_local CheckpointedCalls* calls = nullptr;
  return calls;
}

}  // namespace

CheckpointedCalls::CheckpointedCalls(KeepAttention keep)
    : keep_(keep), outer_(std::exchange(innermost(), this)) {}

CheckpointedCalls::CheckpointedCalls(std::vector<torch::Tensor> tensors)
    : second_run_(true), tensors_(std::move(tensors)), outer_(std::exchange(innermost(), this)) {}

CheckpointedCalls::~CheckpointedCalls() { innermost() = outer_; }

CheckpointedCalls* CheckpointedCalls::current() { return innermost(); }

torch::Tensor CheckpointedCalls::attend(const HeadTensors& h) {
  if (!second_run_) {
    const auto [out, saved] =
        attention_with_checkpoint(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options, keep_);
    tensors_.insert(tensors_.end(), {saved.out, saved.lse1, saved.lse2, saved.o, saved.o2});
    return out;
  }
  TORCH_CHECK(next_ + kTensorsPerCall <= tensors_.size(),
              "activation checkpointing: expected the same attention calls in both runs of a "
              "layer, got more than the ",
              tensors_.size() / kTensorsPerCall, " calls of the first run");
  const torch::Tensor* saved = &tensors_[next_];
  next_ += kTensorsPerCall;
  return attention_from_checkpoint(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options,
                                   {saved[0], saved[1], saved[2], saved[3], saved[4]});
}

}  // namespace diffattn::nn
