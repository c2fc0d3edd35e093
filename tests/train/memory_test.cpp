// SPDX-License-Identifier: Apache-2.0
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include "diffattn/nn/presets.h"
#include "diffattn/train/task_data.h"
#include "train/memory_estimate.h"
#include "train/parameter_count.h"

namespace diffattn::train::memory_test {
namespace {

RunConfig config_of(const std::vector<std::pair<std::string, std::string>>& settings) {
  RunConfig config;
  config.set_all(settings);
  return config;
}

TEST(ParameterCount, EqualsThatOfTheModel) {
  for (const std::string& attention : nn::preset_names()) {
    for (const char* task : {"needle", "classify", "summarize"}) {
      RunConfig config = config_of({{"task", task},
                                    {"model.attention", attention},
                                    {"model.hidden_size", "32"},
                                    {"model.num_hidden_layers", "3"},
                                    {"model.num_attention_heads", "4"}});
      const auto data = open_task_data(config);
      EXPECT_EQ(parameter_count(config, *data), new_task_model(config, *data)->parameter_count())
          << attention << " " << task;
    }
  }
}

TEST(ParameterCount, TakesNoMemoryAndChangesNoBits) {
  RunConfig config = config_of({{"task", "needle"},
                                {"model.hidden_size", "32768"},
                                {"model.num_hidden_layers", "100"},
                                {"model.num_attention_heads", "256"}});
  const auto data = open_task_data(config);
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const int64_t parameters = parameter_count(config, *data);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_GT(parameters, 1'200'000'000'000);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // KiB
  EXPECT_GT(estimate_memory(config, parameters).total(), 16 * parameters);
  EXPECT_EQ(c10::impl::tls_local_dispatch_key_set().included_, keys.included_);
  EXPECT_TRUE(torch::zeros({1}).is_cpu());
}

TEST(MemoryEstimate, DoesNotOverflow) {
  RunConfig config = config_of({{"task", "needle"},
                                {"model.hidden_size", "1048576"},
                                {"model.num_hidden_layers", "4096"},
                                {"model.num_attention_heads", "4096"},
                                {"train.batch_size", "1048576"}});
  const auto data = open_task_data(config);
  config.train.seq_len = 1 << 24;
  const MemoryEstimate estimate = estimate_memory(config, parameter_count(config, *data));
  EXPECT_GT(estimate.total(), int64_t{1} << 60);
  EXPECT_GT(estimate.activations, 0);
  EXPECT_GT(estimate.gradients, 0);
}

/// Values of a pair are two heads wide. No kernel reuses row sums at a width of 256.
TEST(MemoryEstimate, CountsAsKeptOnlyWhatAKernelReads) {
  const auto activations = [](const char* attention, const char* head_dim, const char* keep) {
    RunConfig config = config_of({{"task", "needle"},
                                  {"model.attention", attention},
                                  {"model.head_dim", head_dim},
                                  {"train.device", "cuda"},
                                  {"train.dtype", "bfloat16"},
                                  {"train.activation_checkpointing", "true"},
                                  {"train.keep_attention", keep}});
    open_task_data(config);
    return estimate_memory(config, 1000).activations;
  };
  EXPECT_GT(activations("diffllama", "64", "sums"), activations("diffllama", "64", "nothing"));
  EXPECT_EQ(activations("diffllama", "128", "sums"), activations("diffllama", "128", "nothing"));
  EXPECT_GT(activations("microsoft_v2", "128", "sums"),
            activations("microsoft_v2", "128", "nothing"));
}

/// Four processes divide rows, or tokens, and what train.shard says.
TEST(MemoryEstimate, IsThatOfOneProcessOfAJob) {
  const int64_t parameters = 1 << 26;
  const auto estimate = [&](int64_t processes, const char* together, const char* shard) {
    RunConfig config = config_of({{"task", "needle"},
                                  {"train.batch_size", "8"},
                                  {"train.context_parallel", together},
                                  {"train.shard", shard}});
    config.job.processes = processes;
    open_task_data(config);
    return estimate_memory(config, parameters);
  };
  const MemoryEstimate one = estimate(1, "1", "none"), alone = estimate(1, "1", "parameters");
  EXPECT_EQ(alone.total(), one.total()) << "one process has nothing to divide";
  const MemoryEstimate none = estimate(4, "1", "none"), optimizer = estimate(4, "1", "optimizer");
  const MemoryEstimate gradients = estimate(4, "1", "gradients");
  const MemoryEstimate whole = estimate(4, "1", "parameters"), rows = estimate(2, "2", "none");
  for (const MemoryEstimate& four : {none, optimizer, gradients, whole, rows}) {
    EXPECT_NEAR(static_cast<double>(four.activations), static_cast<double>(one.activations) / 4, 8);
  }
  EXPECT_EQ(none.parameters, one.parameters);
  EXPECT_EQ(none.optimizer, one.optimizer);
  EXPECT_EQ(optimizer.optimizer, one.optimizer / 4);
  EXPECT_EQ(optimizer.parameters, one.parameters);
  EXPECT_LT(gradients.gradients, optimizer.gradients / 2);
  EXPECT_EQ(gradients.parameters, one.parameters);
  EXPECT_LT(whole.parameters, 2 * one.parameters / 3);
  EXPECT_EQ(whole.optimizer, one.optimizer / 4);
}

/// The backward pass on a CPU reads o of heads with a norm, which a checkpoint keeps.
TEST(MemoryEstimate, CountsTheOutputsOfNormedHeadsOnTheCpu) {
  const auto kept_per_width = [](const char* attention) {
    const auto activations = [&](const char* keep) {
      RunConfig config = config_of({{"task", "needle"},
                                    {"model.attention", attention},
                                    {"train.activation_checkpointing", "true"},
                                    {"train.keep_attention", keep}});
      open_task_data(config);
      return estimate_memory(config, 1000).activations;
    };
    return activations("results") - activations("nothing");
  };
  EXPECT_GT(kept_per_width("diffllama"), 3 * kept_per_width("microsoft_v2") / 2);
}

}  // namespace
}  // namespace diffattn::train::memory_test
