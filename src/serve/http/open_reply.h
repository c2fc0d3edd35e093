// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <microhttpd.h>

#include <mutex>

#include "serve/http/http.h"

namespace diffattn::serve {

/// A Reply on a connection of libmicrohttpd. While there is nothing to send, the connection is
/// suspended: it takes no thread and no polling.
class OpenReply : public Reply, public std::enable_shared_from_this<OpenReply> {
 public:
  explicit OpenReply(MHD_Connection* connection) : connection_(connection) {}

  void send(int status, std::string body, std::string_view content_type, Headers headers) override;
  void begin(std::string_view content_type, Headers headers) override;
  void write(std::string_view text) override;
  void end() override;
  void abandon() noexcept override { drop(); }
  void on_gone(std::function<void()> gone) override;

  // For the threads of libmicrohttpd:

  /// Queues the answer if it has begun, else suspends the connection.
  MHD_Result answer_or_suspend();
  /// Copies text of a growing answer to `to`; see MHD_ContentReaderCallback.
  ssize_t read(char* to, size_t room);
  /// The connection is about to close or to take another request.
  void detach();

  // For the thread that watches connections:

  /// Closes a connection, as soon as libmicrohttpd looks at it, even if it is suspended.
  void drop() noexcept;

 private:
  enum class State : uint8_t { kWaiting, kWhole, kGrowing, kEnded };

  MHD_Result queue(bool whole);
  void resume_locked();

  std::mutex mutex_;
  MHD_Connection* connection_;  // null after detach()
  State state_ = State::kWaiting;
  bool suspended_ = false, dropped_ = false;
  int status_ = 200;
  std::string content_type_, text_;
  size_t sent_ = 0;  // bytes of text_
  Headers headers_;
  std::function<void()> gone_;
};

}  // namespace diffattn::serve
