// SPDX-License-Identifier: Apache-2.0
#include "infer/step_stream.h"

#include <mutex>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace diffattn::infer {
namespace {

/// Streams that earlier engines have left. torch keeps memory for every stream that it has seen
/// (32 MiB for the products of an H200), so a new engine takes an old stream if there is one.
class FreeStreams {
 public:
  static FreeStreams& instance() {
    static auto* const streams = new FreeStreams;  // never destroyed: engines may outlive `main`
    return *streams;
  }

  c10::Stream take(c10::Device device) {
    const std::lock_guard lock(mutex_);
    for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
      if (stream->device() != device) continue;
      const c10::Stream found = *stream;
      streams_.erase(stream);
      return found;
    }
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  void give_back(c10::Stream stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

}  // namespace

StepStream::StepStream(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = FreeStreams::instance().take(device);
}

StepStream::~StepStream() {
  if (!stream_) return;
  stream_->synchronize();  // what the stream uses may go away next
  FreeStreams::instance().give_back(*stream_);
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
