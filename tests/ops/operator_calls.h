// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <mutex>
#include <string>

namespace diffattn::testing {

/// How often each operator of torch was entered, on any thread, while it lives. An operator with
/// gradients is entered twice: with them and below.
class OperatorCalls {
 public:
  OperatorCalls()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}))) {
    const std::lock_guard lock(mutex());
    counts().clear();
  }
  OperatorCalls(const OperatorCalls&) = delete;
  OperatorCalls& operator=(const OperatorCalls&) = delete;
  ~OperatorCalls() { at::removeCallback(handle_); }

  int of(const std::string& name) const {
    const std::lock_guard lock(mutex());
    return counts()[name];
  }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    const std::lock_guard lock(mutex());
    ++counts()[function.name()];
    return nullptr;
  }
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> by_name;
    return by_name;
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }

  at::CallbackHandle handle_;
};

}  // namespace diffattn::testing
