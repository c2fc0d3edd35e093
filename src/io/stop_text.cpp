// SPDX-License-Identifier: Apache-2.0
#include "io/stop_text.h"

#include <algorithm>

namespace diffattn::io {

std::string StopText::show(size_t length) {
  std::string text = held_.substr(0, length);
  held_.erase(0, length);
  shown_ += text;
  return text;
}

std::string StopText::push(const std::string& piece) {
  if (found_) return "";
  held_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) end = std::min(end, held_.find(stop));
  }
  if (end != std::string::npos) {
    found_ = true;
    return show(end);
  }
  // Length of the longest ending that a stop string begins with.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size(), held_.size()); n > keep; --n) {
      if (held_.ends_with(stop.substr(0, n))) keep = n;
    }
  }
  return show(held_.size() - keep);
}

std::string StopText::finish(const std::string& piece) {
  const std::string text = push(piece);
  return found_ ? text : text + show(held_.size());
}

}  // namespace diffattn::io
