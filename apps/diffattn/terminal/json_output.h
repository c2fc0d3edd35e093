// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/diffattn/terminal/json_text.h"

namespace diffattn::app {

/// Prints the result of a verb on standard output, or appends it to the JsonCapture of this thread.
void print_json(const Json& json, int indent = 2);
/// Does the same for a result that is already text.
void print_json_text(const std::string& text);

/// A scope in which both functions collect the text of this thread instead of printing it.
class JsonCapture {
 public:
  JsonCapture();
  ~JsonCapture();
  JsonCapture(const JsonCapture&) = delete;
  JsonCapture& operator=(const JsonCapture&) = delete;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace diffattn::app
