// SPDX-License-Identifier: Apache-2.0
#include "serve/http/open_reply.h"

#include <algorithm>
#include <cstring>

#include "serve/http/microhttpd.h"

namespace diffattn::serve {
namespace {

/// Most bytes that libmicrohttpd asks for at a time.
constexpr size_t kBlockBytes = 4096;

ssize_t read_text(void* reply, uint64_t, char* to, size_t room) {
  return (*static_cast<std::shared_ptr<OpenReply>*>(reply))->read(to, room);
}

void free_reply(void* reply) { delete static_cast<std::shared_ptr<OpenReply>*>(reply); }

}  // namespace

void OpenReply::send(int status, std::string body, std::string_view content_type, Headers headers) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  content_type_ = content_type;  // first: it may find no memory
  state_ = State::kWhole;
  status_ = status;
  headers_ = std::move(headers);
  text_ = std::move(body);
  resume_locked();
}

void OpenReply::begin(std::string_view content_type, Headers headers) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  content_type_ = content_type;  // first: it may find no memory
  state_ = State::kGrowing;
  headers_ = std::move(headers);
  resume_locked();
}

void OpenReply::write(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kGrowing || connection_ == nullptr) return;
  text_ += text;
  resume_locked();
}

void OpenReply::end() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kGrowing) return;
  state_ = State::kEnded;
  resume_locked();
}

void OpenReply::on_gone(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (connection_ != nullptr && !dropped_) {
      gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

MHD_Result OpenReply::answer_or_suspend() {
  bool whole = false;
  {
    const std::lock_guard lock(mutex_);
    if (dropped_) return MHD_NO;
    if (state_ == State::kWaiting) {
      suspended_ = true;
      microhttpd().suspend_connection(connection_);
      return MHD_YES;
    }
    whole = state_ == State::kWhole;
  }
  return queue(whole);
}

/// Queues an answer that has begun: its head, and its text if that is whole, change no more. Not
/// under our mutex, since libmicrohttpd takes its own here and holds it while it calls read().
MHD_Result OpenReply::queue(bool whole) {
  const Microhttpd& api = microhttpd();
  MHD_Response* response = nullptr;
  if (whole) {
    response = api.create_response_from_buffer(text_.size(), text_.data(), MHD_RESPMEM_MUST_COPY);
  } else {
    auto self = std::make_unique<std::shared_ptr<OpenReply>>(shared_from_this());
    response = api.create_response_from_callback(MHD_SIZE_UNKNOWN, kBlockBytes, read_text,
                                                 self.get(), free_reply);
    if (response != nullptr) self.release();
  }
  if (response == nullptr) return MHD_NO;
  api.add_response_header(response, "Content-Type", content_type_.c_str());
  for (const auto& [name, value] : headers_) {
    api.add_response_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result result =
      api.queue_response(connection_, static_cast<unsigned>(status_), response);
  api.destroy_response(response);
  return result;
}

ssize_t OpenReply::read(char* to, size_t room) {
  const std::lock_guard lock(mutex_);
  if (dropped_) return MHD_CONTENT_READER_END_WITH_ERROR;
  const size_t count = std::min(room, text_.size() - sent_);
  if (count > 0) {
    std::memcpy(to, text_.data() + sent_, count);
    sent_ += count;
    if (sent_ == text_.size()) text_.clear(), sent_ = 0;
    return static_cast<ssize_t>(count);
  }
  if (state_ == State::kEnded) return MHD_CONTENT_READER_END_OF_STREAM;
  suspended_ = true;
  microhttpd().suspend_connection(connection_);
  return 0;
}

void OpenReply::detach() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
    suspended_ = false;
    text_.clear();
    sent_ = 0;
    if (state_ == State::kWaiting || state_ == State::kGrowing) gone.swap(gone_);
    gone_ = nullptr;
  }
  if (gone) gone();
}

void OpenReply::drop() noexcept {
  const std::lock_guard lock(mutex_);
  dropped_ = true;
  resume_locked();
}

/// Lets libmicrohttpd look at the connection again.
void OpenReply::resume_locked() {
  if (!suspended_) return;
  suspended_ = false;
  microhttpd().resume_connection(connection_);
}

}  // namespace diffattn::serve
