// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/http/http.h"

namespace diffattn::serve {

/// Keeps what was answered.
struct RecordedReply : Reply {
  std::atomic<int> status = 0;  // tests may look at it before it is ended
  std::string text, type;
  Headers headers;
  std::atomic<bool> ended = false, abandoned = false;
  std::function<void()> gone;

  void send(int code, std::string body, std::string_view content_type, Headers with) override {
    status = code, text = std::move(body), type = content_type, headers = std::move(with);
    ended = true;
  }
  void begin(std::string_view content_type, Headers with) override {
    status = 200, type = content_type, headers = std::move(with);
  }
  void write(std::string_view more) override { text += more; }
  void end() override { ended = true; }
  void abandon() noexcept override { abandoned = true; }
  void on_gone(std::function<void()> call) override { gone = std::move(call); }

  nlohmann::json json() const { return nlohmann::json::parse(text); }
  /// The events of a stream, without the last one.
  std::vector<nlohmann::json> events() const {
    std::vector<nlohmann::json> all;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      const std::string line = text.substr(at, end - at);
      if (line != "data: [DONE]") all.push_back(nlohmann::json::parse(line.substr(6)));
      at = end + 2;
    }
    return all;
  }
};

/// Finds no memory for the first calls that send something.
struct FailingReply : RecordedReply {
  int failures = 0;

  void fail_once() {
    if (failures-- > 0) throw std::bad_alloc();
  }
  void send(int code, std::string body, std::string_view content_type, Headers with) override {
    fail_once();
    RecordedReply::send(code, std::move(body), content_type, std::move(with));
  }
  void write(std::string_view more) override {
    fail_once();
    RecordedReply::write(more);
  }
};

}  // namespace diffattn::serve
