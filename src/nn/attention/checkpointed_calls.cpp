// SPDX-License-Identifier: Apache-2.0
#include "nn/attention/checkpointed_calls.h"

#include <utility>

namespace diffattn::nn {
namespace {

constexpr size_t kTensorsPerCall = 5;  // members of KeptAttention

KeptCalls*& innermost() {
  thread_local KeptCalls* calls = nullptr;
  return calls;
}

}  // namespace

KeptCalls::KeptCalls(KeepAttention keep) : keep_(keep), outer_(std::exchange(innermost(), this)) {}

KeptCalls::KeptCalls(std::vector<torch::Tensor> tensors)
    : again_(true), tensors_(std::move(tensors)), outer_(std::exchange(innermost(), this)) {}

KeptCalls::~KeptCalls() { innermost() = outer_; }

KeptCalls* KeptCalls::current() { return innermost(); }

torch::Tensor KeptCalls::attend(const HeadTensors& h) {
  if (!again_) {
    const auto [out, kept] =
        attention_first(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options, keep_);
    tensors_.insert(tensors_.end(), {kept.out, kept.lse1, kept.lse2, kept.o, kept.o2});
    return out;
  }
  TORCH_CHECK(next_ + kTensorsPerCall <= tensors_.size(),
              "activation checkpointing: expected the same attention calls in both runs of a "
              "layer, got one more than the ",
              tensors_.size() / kTensorsPerCall, " of the first");
  const torch::Tensor* kept = &tensors_[next_];
  next_ += kTensorsPerCall;
  return attention_again(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options,
                         {kept[0], kept[1], kept[2], kept[3], kept[4]});
}

}  // namespace diffattn::nn
