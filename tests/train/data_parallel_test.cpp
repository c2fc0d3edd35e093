// SPDX-License-Identifier: Apache-2.0
//
// When the processes of a job sum gradients. tests/python/distributed_test.py has the results.

#include "train/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/train/task_data.h"
#include "diffattn/train/trainer.h"

namespace diffattn::train::data_parallel_test {
namespace {

using parallel::Started;
using torch::Tensor;

/// Two processes of which this one is rank 0 and the other has the same tensors. They note the
/// sizes of the sums that they start.
class NotedSums final : public parallel::Collective {
 public:
  explicit NotedSums(std::vector<std::string>& notes) : notes_(notes) {}
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 2; }
  bool takes(torch::DeviceType) const override { return true; }
  std::shared_ptr<Collective> second() override { return std::make_shared<NotedSums>(notes_); }
  Started broadcast(const Tensor&, int64_t) override { return {}; }
  Started all_reduce(const Tensor& tensor) override {
    note(tensor);
    return Started([tensor] { tensor.mul_(2); });
  }
  Started reduce_scatter(const Tensor& out, const Tensor& in) override {
    note(in);
    return Started([out, in] { out.copy_(in.slice(0, 0, out.numel()) * 2); });
  }
  Started all_gather(const Tensor& out, const Tensor& in) override {
    return Started([out, in] { out.copy_(torch::cat({in, in})); });
  }
  Started exchange(const Tensor&, const Tensor&, std::vector<int64_t>,
                   std::vector<int64_t>) override {
    ADD_FAILURE() << "gradients need no exchange";
    return {};
  }

 private:
  void note(const Tensor& tensor) { notes_.push_back(std::to_string(tensor.numel())); }

  std::vector<std::string>& notes_;
};

TEST(DataParallel, SumsStartWhileTheBackwardRuns) {
  for (const char* shard : {"none", "optimizer", "gradients"}) {
    std::vector<std::string> notes;
    torch::nn::Sequential model;
    for (int layer = 0; layer < 4; ++layer) model->push_back(torch::nn::Linear(256, 256));
    DataParallel processes(std::make_shared<NotedSums>(notes), *model, shard);
    model->parameters().front().register_hook([&](const Tensor&) { notes.push_back("last"); });
    const Tensor x = torch::randn({3, 256});
    processes.begin_backward();
    model->forward(x).square().sum().backward();
    processes.finish_backward();
    // Four matrices, and a bucket of all biases that waits for the first layer.
    const auto last = std::ranges::find(notes, "last") - notes.begin();
    EXPECT_GE(last, 3) << shard;
    EXPECT_EQ(std::count(notes.begin(), notes.begin() + last, "65536"), 3) << shard;
    EXPECT_EQ(notes.back(), "65536") << shard << ": the first matrix is the last bucket";
    EXPECT_EQ(notes.size(), 6U) << shard;
    // Without begin_backward() sums wait: a micro-batch that is not the last of its update.
    notes.clear();
    model->forward(x).square().sum().backward();
    EXPECT_EQ(notes, std::vector<std::string>{"last"}) << shard;
    processes.finish_backward();
    EXPECT_EQ(notes.size(), 6U) << shard;
  }
}

/// Returns the sizes of the sums of one update, in their order.
std::vector<std::string> sums_of_update(const std::string& shard, int64_t micro_batches) {
  RunConfig config;
  config.set_all({{"task", "needle"},
                  {"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "2"},
                  {"model.num_attention_heads", "2"},
                  {"needle.length", "16"},
                  {"train.batch_size", "2"},
                  {"train.accumulate", std::to_string(micro_batches)},
                  {"train.shard", shard},
                  {"train.peak_tflops", "1"}});
  const auto data = open_task_data(config);
  std::vector<std::string> notes;
  Trainer trainer(new_task_model(config, *data), config, std::make_shared<NotedSums>(notes));
  notes.clear();
  trainer.step(*data->train_batches());
  return notes;
}

TEST(DataParallel, MicroBatchesCommunicateOnce) {
  for (const char* shard : {"none", "optimizer", "gradients"}) {
    EXPECT_EQ(sums_of_update(shard, 3), sums_of_update(shard, 1)) << shard;
  }
  // No process has whole gradients of all parameters.
  EXPECT_GT(sums_of_update("parameters", 3).size(), sums_of_update("parameters", 1).size());
}

}  // namespace
}  // namespace diffattn::train::data_parallel_test
