// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/serve/event_reader.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace diffattn::app {

void EventReader::push(std::string_view bytes, const std::function<void(std::string_view)>& event) {
  held_ += bytes;
  if (status_ == 0) read_head();
  if (status_ != 0) read_body(event);
}

void EventReader::read_head() {
  const size_t end = held_.find("\r\n\r\n");
  if (end == std::string::npos) return;
  std::string head = held_.substr(0, end + 2);
  held_.erase(0, end + 4);
  std::ranges::transform(head, head.begin(), [](unsigned char c) { return std::tolower(c); });
  if (head.size() > 12) std::from_chars(head.data() + 9, head.data() + 12, status_);
  if (status_ < 200) return status_ = 0, read_head();  // 100 Continue
  chunked_ = head.find("\r\ntransfer-encoding: chunked") != std::string::npos;
  events_ = head.find("\r\ncontent-type: text/event-stream") != std::string::npos;
  static constexpr std::string_view kLength = "\r\ncontent-length: ";
  if (const size_t at = head.find(kLength); at != std::string::npos) {
    std::from_chars(head.data() + at + kLength.size(), head.data() + head.size(), length_);
  }
}

/// Moves a chunk of a chunked body from held_ to body_. Returns false if it is not complete.
bool EventReader::next_chunk() {
  const size_t line = held_.find("\r\n");
  if (line == std::string::npos) return false;
  size_t size = 0;
  std::from_chars(held_.data(), held_.data() + line, size, 16);
  if (held_.size() < line + 2 + size + 2) return false;
  body_.append(held_, line + 2, size);
  held_.erase(0, line + 2 + size + 2);
  complete_ = size == 0;
  return !complete_;
}

void EventReader::read_body(const std::function<void(std::string_view)>& event) {
  if (chunked_) {
    while (!complete_ && next_chunk()) {
    }
  } else {
    const size_t count = std::min(length_, held_.size());
    body_.append(held_, 0, count);
    held_.erase(0, count);
    if (length_ != std::string::npos) complete_ = (length_ -= count) == 0;
  }
  if (!events_) return;
  for (size_t end = 0; (end = body_.find("\n\n")) != std::string::npos; body_.erase(0, end + 2)) {
    const std::string_view text = std::string_view(body_).substr(0, end);
    if (text.starts_with("data: ")) event(text.substr(6));
  }
}

}  // namespace diffattn::app
