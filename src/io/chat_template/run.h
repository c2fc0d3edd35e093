// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "io/chat_template/value.h"

namespace diffattn::io::chat {

// Limits of one template. Published ones have at most some 20 kB and nest ten deep.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 18;
inline constexpr size_t kMaxTreeDepth = 128;
// Limits of one rendering. A conversation of 1000 messages takes some 10^5 steps.
inline constexpr size_t kMaxSteps = size_t{1} << 22;
inline constexpr size_t kMaxMadeBytes = size_t{1} << 26;
inline constexpr size_t kMaxRunDepth = 400;

/// Throws Error with the file, the line and the message.
[[noreturn]] void fail_at(const std::string& file, size_t line, const std::string& message);

/// One rendering: what it may still do, where it is, and the namespaces that it made.
///
/// Every function that takes time or memory in proportion to a value first asks the Run, which
/// throws Error once the template has used up its share.
class Run {
 public:
  explicit Run(const std::string& file) : file_(file) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Sets the line that errors name.
  void at(size_t line) { line_ = line; }
  void step(size_t count = 1);
  /// Counts the steps of looking at that many bytes.
  void read(size_t bytes) { step(1 + bytes / 64); }
  /// Counts memory before it is allocated.
  void make(size_t bytes);

  /// Makes values and counts their memory.
  Value text(std::string_view text);
  Value list(List items);
  Value dict(Dict members);
  Value space(Namespace members);

  [[noreturn]] void fail(const std::string& message) const { fail_at(file_, line_, message); }
  [[noreturn]] void expected(const std::string& what, const Value& got) const;

 private:
  const std::string& file_;
  size_t line_ = 1, steps_ = 0, made_ = 0;
  std::deque<Namespace> spaces_;
};

}  // namespace diffattn::io::chat
