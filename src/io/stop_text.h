// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace diffattn::io {

/// Generated text that ends before the first stop string. It holds back an ending that may be the
/// beginning of a stop string until the next piece decides.
class StopText {
 public:
  StopText() = default;
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes the next piece and returns the text that can be shown now.
  std::string push(const std::string& piece);
  /// Takes the last piece and returns all text that is left.
  std::string finish(const std::string& piece);

  /// True if a stop string ended the text.
  bool found() const { return found_; }
  /// Returns all text shown so far.
  const std::string& all() const { return shown_; }

 private:
  std::string show(size_t length);

  std::vector<std::string> stops_;
  std::string shown_, held_;
  bool found_ = false;
};

}  // namespace diffattn::io
