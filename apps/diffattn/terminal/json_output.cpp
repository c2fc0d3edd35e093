// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/json_output.h"

#include "apps/diffattn/terminal/print.h"

namespace diffattn::app {
namespace {

thread_local std::string* captured = nullptr;

}  // namespace

void print_json(const Json& json, int indent) { print_json_text(json_text(json, indent) + "\n"); }

void print_json_text(const std::string& text) {
  if (captured != nullptr) {
    *captured += text;
  } else {
    print_out("{}", text);
  }
}

JsonCapture::JsonCapture() { captured = &text_; }
JsonCapture::~JsonCapture() { captured = nullptr; }

}  // namespace diffattn::app
