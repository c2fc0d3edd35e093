// SPDX-License-Identifier: Apache-2.0
//
// Parts of a job of several processes that need no second process. tests/python/distributed_test.py
// has the rest.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "diffattn/error.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/parallel/token_ranges.h"
#include "parallel/failure_message.h"
#include "parallel/through_host.h"

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

/// Two processes of which this one is rank 0 and the other has the same tensors. They take no
/// device, and note where the tensors of their operations lie.
class Twins : public WithoutNccl {
 public:
  explicit Twins(std::vector<const void*>& seen) : seen_(seen) {}
  bool takes(torch::DeviceType) const override { return false; }
  std::shared_ptr<Collective> second() override { return std::make_shared<Twins>(seen_); }
  Started all_reduce(const Tensor& tensor) override {
    seen_.push_back(tensor.data_ptr());
    return Started([tensor] { tensor.mul_(2); });
  }
  Started reduce_scatter(const Tensor& out, const Tensor& in) override {
    seen_.insert(seen_.end(), {out.data_ptr(), in.data_ptr()});
    return Started([out, in] { out.copy_(in.slice(0, 0, out.numel()) * 2); });
  }
  Started exchange(const Tensor& out, const Tensor& in, std::vector<int64_t> out_counts,
                   std::vector<int64_t> in_counts) override {
    seen_.insert(seen_.end(), {out.data_ptr(), in.data_ptr()});
    EXPECT_EQ(out_counts, (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(in_counts, (std::vector<int64_t>{2, 1}));
    return Started([out, in] { out.copy_(in.flip(0)); });
  }

 private:
  std::vector<const void*>& seen_;
};

TEST(ThroughHost, OperationsWorkOnCopies) {
  std::vector<const void*> seen;
  const auto shared = through_host(std::make_shared<Twins>(seen))->second();
  EXPECT_TRUE(shared->is_group());
  check_device(*shared, torch::Device("cuda:1"));

  const Tensor sum = torch::tensor({1.0f, 2.0f, 3.0f});
  Started first = shared->all_reduce(sum);
  EXPECT_TRUE(torch::equal(sum, torch::tensor({1.0f, 2.0f, 3.0f}))) << "changed before wait()";
  const Tensor in = torch::tensor({5.0f, 6.0f, 7.0f, 8.0f}), part = torch::zeros(2);
  Started second = shared->reduce_scatter(part, in);
  const Tensor received = torch::zeros(3), sent = torch::tensor({1.0f, 2.0f, 3.0f});
  Started third = shared->exchange(received, sent, {1, 2}, {2, 1});
  for (Started* started : {&first, &second, &third}) started->wait();

  EXPECT_TRUE(torch::equal(sum, torch::tensor({2.0f, 4.0f, 6.0f})));
  EXPECT_TRUE(torch::equal(part, torch::tensor({10.0f, 12.0f})));
  EXPECT_TRUE(torch::equal(in, torch::tensor({5.0f, 6.0f, 7.0f, 8.0f})));
  EXPECT_TRUE(torch::equal(received, torch::tensor({3.0f, 2.0f, 1.0f})));
  EXPECT_EQ(seen.size(), 5u);
  for (const Tensor& own : {sum, part, in, received, sent}) {
    EXPECT_EQ(std::ranges::count(seen, own.data_ptr()), 0) << "no copy";
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
