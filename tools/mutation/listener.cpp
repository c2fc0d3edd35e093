// SPDX-License-Identifier: Apache-2.0
//
// Linked into every test program of a mutated build. With DIFFATTN_MUTATION_REPORT it appends one
// line for each test to that file: its name, its time in ms and the mutants that it reached.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "switch.h"

namespace {

class ReachedMutants : public testing::EmptyTestEventListener {
 public:
  explicit ReachedMutants(const char* path) : out_(path, std::ios::app) {}

 private:
  void OnTestStart(const testing::TestInfo&) override {
    for (int id = 0; id < diffattn_mutation::kMaxMutants; ++id) {
      diffattn_mutation::reached()[id] = false;
    }
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    out_ << test.test_suite_name() << '.' << test.name() << ' ' << test.result()->elapsed_time();
    for (int id = 0; id < diffattn_mutation::kMaxMutants; ++id) {
      if (diffattn_mutation::reached()[id]) out_ << ' ' << id;
    }
    out_ << std::endl;
  }

  std::ofstream out_;
};

const bool registered = [] {
  if (const char* path = std::getenv("DIFFATTN_MUTATION_REPORT")) {
    testing::UnitTest::GetInstance()->listeners().Append(new ReachedMutants(path));
  }
  return true;
}();

}  // namespace
