// SPDX-License-Identifier: Apache-2.0
//
// Parts of a job of several processes that need no second process. tests/python/distributed_test.py
// has the rest.

#include <gtest/gtest.h>

#include <memory>

#include "diffattn/error.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/parallel/token_ranges.h"
#include "parallel/failure_message.h"

namespace diffattn::parallel::collective_test {
namespace {

using torch::Tensor;

/// Two processes of a torch without NCCL.
class WithoutNccl : public Collective {
 public:
  int64_t rank() const override { return 1; }
  int64_t size() const override { return 2; }
  bool takes(torch::DeviceType device) const override { return device == torch::kCPU; }
  std::shared_ptr<Collective> second() override { return nullptr; }
  Started broadcast(const Tensor&, int64_t) override { return {}; }
  Started all_reduce(const Tensor&) override { return {}; }
  Started reduce_scatter(const Tensor&, const Tensor&) override { return {}; }
  Started all_gather(const Tensor&, const Tensor&) override { return {}; }
  Started all_to_all(const Tensor&, const Tensor&) override { return {}; }
  Started exchange(const Tensor&, const Tensor&, std::vector<int64_t>,
                   std::vector<int64_t>) override {
    return {};
  }
};

TEST(Collective, GpusNeedNccl) {
  check_device(*one_process(), torch::Device("cuda:1"));
  check_device(WithoutNccl(), torch::kCPU);
  try {
    check_device(WithoutNccl(), torch::Device("cuda:1"));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "parallel: the 2 processes need NCCL for tensors on cuda:1, which this torch does "
                 "not have; install a torch with CUDA, or compute on the CPU");
  }
}

TEST(Collective, OneProcessGathersItsOwnText) {
  const auto alone = one_process();
  for (const std::string& text : {std::string("a\0b", 3), std::string()}) {
    EXPECT_EQ(all_gather_texts(*alone, text), std::vector{text});
  }
}

TEST(Collective, OnlyConnectionsSuggestThatAProcessHasEnded) {
  const std::string suggestion = "probably because another process has ended";
  for (const char* text : {"[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:4711",
                           "Timed out waiting 60000ms for recv operation to complete",
                           "writev [::1]:4711: Broken pipe"}) {
    EXPECT_NE(failure_message("sum", text).find(suggestion), std::string::npos) << text;
  }
  for (const char* text :
       {"Number of tensor splits not equal to group size", "CUDA out of memory",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library"}) {
    EXPECT_EQ(failure_message("sum on rank 0 of 2", std::string(text) + "\nException raised"),
              "parallel: the sum on rank 0 of 2 failed: " + std::string(text));
  }
}

TEST(TokenRanges, BelongToOneProcessEach) {
  EXPECT_EQ(token_ranges(29, 1, 2, false).front().begin, 14);
  const auto zigzag = token_ranges(29, 1, 2, true);
  ASSERT_EQ(zigzag.size(), 2U);
  EXPECT_EQ(zigzag[0].begin, 7);
  EXPECT_EQ(zigzag[0].end, 14);
  EXPECT_EQ(zigzag[1].begin, 14);
  EXPECT_EQ(zigzag[1].end, 21);
}

}  // namespace
}  // namespace diffattn::parallel::collective_test
