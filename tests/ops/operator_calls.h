// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

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

/// What is not defined in one list is not in the other.
inline void expect_same_bits(const std::vector<torch::Tensor>& got,
                             const std::vector<torch::Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << what << ", " << i;
    EXPECT_TRUE(!want[i].defined() || torch::equal(got[i], want[i])) << what << ", " << i;
  }
}

}  // namespace diffattn::testing
