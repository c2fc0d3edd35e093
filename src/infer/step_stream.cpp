// SPDX-License-Identifier: Apache-2.0
#include "infer/step_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace diffattn::infer {

StepStream::StepStream(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

StepStream::~StepStream() {
  if (stream_) stream_->synchronize();  // what the stream uses may go away next
}

token::Stream StepStream::handle() const { return stream_ ? stream_->native_handle() : nullptr; }

StepStream::Scope::Scope(const StepStream& stream) : device_(stream.device()) {
  if (stream.stream_) stream_.reset_stream(*stream.stream_);
}

void StepStream::follow_caller() {
  if (!stream_) return;
  c10::Event ready(device_.type());
  ready.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  ready.block(*stream_);
}

void StepStream::mark() {
  if (!stream_) return;
  marks_.emplace_back(device_.type());
  marks_.back().record(*stream_);
}

void StepStream::wait_for_mark() {
  if (!stream_) return;
  marks_.front().synchronize();
  marks_.pop_front();
}

void StepStream::synchronize() const {
  if (stream_) stream_->synchronize();
}

}  // namespace diffattn::infer
