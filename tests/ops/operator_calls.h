// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace diffattn::testing {

/// Counts the calls of each torch operator, on any thread, while the object lives. An operator with
/// gradients counts twice: at the autograd key and below it.
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

/// Expects equal tensors; the same ones must be undefined.
inline void expect_same_bits(const std::vector<torch::Tensor>& got,
                             const std::vector<torch::Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << what << ", " << i;
    EXPECT_TRUE(!want[i].defined() || torch::equal(got[i], want[i])) << what << ", " << i;
  }
}

}  // namespace diffattn::testing
