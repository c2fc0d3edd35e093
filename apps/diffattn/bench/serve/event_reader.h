// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace diffattn::app {

/// Reads an HTTP/1.1 answer as it arrives: its status, and the server-sent events of its body, or
/// the whole body if it has none.
class EventReader {
 public:
  /// Takes bytes and calls `event` with the data of each complete event.
  void push(std::string_view bytes, const std::function<void(std::string_view)>& event);

  int status() const { return status_; }  // 0 before the head has come
  /// True when the body is complete, as its head announces it.
  bool complete() const { return complete_; }
  /// The body of an answer that is no stream.
  const std::string& body() const { return body_; }

 private:
  void read_head();
  void read_body(const std::function<void(std::string_view)>& event);
  bool next_chunk();

  std::string held_;  // bytes that are not read yet
  std::string body_;  // decoded, without the events that were given away
  int status_ = 0;
  bool chunked_ = false, events_ = false, complete_ = false;
  size_t length_ = std::string::npos;  // left of the body, if the head tells
};

}  // namespace diffattn::app
