// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/chat_template/evaluator.h"

namespace diffattn::io::chat {

class Evaluator::Entered {
 public:
  Entered(std::vector<Scope>& scopes, size_t outer) : scopes_(scopes) {
    scopes_.push_back({.variables = {}, .outer = outer, .loop = nullptr});
  }
  explicit Entered(std::vector<Scope>& scopes) : Entered(scopes, scopes.size() - 1) {}
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() { scopes_.pop_back(); }

 private:
  std::vector<Scope>& scopes_;
};

class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : depth_(evaluator.depth_) {
    if (depth_ == kMaxRunDepth) {
      evaluator.run_.fail("expected macros that call each other less deeply, got " +
                          std::to_string(kMaxRunDepth) + " levels");
    }
    ++depth_;
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  ~Deeper() { --depth_; }

 private:
  size_t& depth_;
};

}  // namespace diffattn::io::chat
