// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace diffattn::app {

/// Text that ends where one of the stop strings begins. What might be the beginning of one is held
/// back until the next piece decides.
class StopText {
 public:
  StopText() = default;
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes the next piece; returns what can be shown now.
  std::string push(const std::string& piece);
  /// The last piece; returns what was still held back.
  std::string finish(const std::string& piece);

  bool found() const { return found_; }
  /// Everything that was shown.
  const std::string& all() const { return shown_; }

 private:
  std::string show(size_t length);

  std::vector<std::string> stops_;
  std::string shown_, held_;
  bool found_ = false;
};

}  // namespace diffattn::app
