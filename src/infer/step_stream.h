// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <deque>
#include <optional>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "kernels/token_step.h"

namespace diffattn::infer {

/// The stream on which an engine works, and marks in it. On a CPU work is done when its call
/// returns, so nothing here does anything.
class StepStream {
 public:
  explicit StepStream(c10::Device device);
  ~StepStream();
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  c10::Device device() const { return device_; }
  token::Stream handle() const;

  /// Lets torch's operators on this thread run on the stream, without gradients.
  class Scope {
   public:
    explicit Scope(const StepStream& stream);

   private:
    c10::InferenceMode inference_;
    c10::DeviceGuard device_;
    c10::OptionalStreamGuard stream_;
  };

  /// Lets later work wait for what is on the caller's current stream.
  void follow_caller();
  /// Puts a mark behind the work so far.
  void mark();
  /// Waits for the oldest mark.
  void wait_for_mark();
  void synchronize() const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;  // none on a CPU
  std::deque<c10::Event> marks_;
};

}  // namespace diffattn::infer
