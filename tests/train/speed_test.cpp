// SPDX-License-Identifier: Apache-2.0
//
// The speed of training as a run reports it: tokens, and the share of what the device can do.

#include <gtest/gtest.h>
#include <sys/time.h>
#include <torch/torch.h>

#include <csignal>
#include <ctime>

#include "diffattn/train/task_data.h"
#include "diffattn/train/task_model.h"
#include "diffattn/train/trainer.h"
#include "train/flops.h"

namespace diffattn::train::speed_test {
namespace {

/// Takes the CPU away in its scope, as other programs do: this thread sleeps for 3 ms after each
/// 0.5 ms.
class TakenTurns {
 public:
  TakenTurns() {
    struct sigaction action = {};
    action.sa_handler = rest;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, &before_);
    run();
  }
  ~TakenTurns() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  TakenTurns(const TakenTurns&) = delete;
  TakenTurns& operator=(const TakenTurns&) = delete;

 private:
  static void run() {
    const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 500}};
    setitimer(ITIMER_REAL, &once, nullptr);
  }
  static void rest(int) {
    const timespec pause{.tv_sec = 0, .tv_nsec = 3'000'000};
    nanosleep(&pause, nullptr);
    run();
  }
  struct sigaction before_ = {};
};

TEST(Flops, TheSpeedOfADeviceIsThatWithoutOtherPrograms) {
  const double alone = measured_product_speed(torch::kCPU, torch::kFloat32);
  const TakenTurns turns;  // a share of 1/7 of the time is left
  const double disturbed = measured_product_speed(torch::kCPU, torch::kFloat32);
  EXPECT_GT(disturbed, alone / 4);
}

TEST(Trainer, CountsAllTokensAndUtilisationIsAtMostOne) {
  for (const char* peak : {"1e-6", "0"}) {  // far below the speed of updates, and measured
    RunConfig config;
    config.set_all({{"task", "needle"},
                    {"model.hidden_size", "16"},
                    {"model.num_hidden_layers", "1"},
                    {"model.num_attention_heads", "2"},
                    {"needle.length", "24"},
                    {"train.batch_size", "4"},
                    {"train.peak_tflops", peak}});
    const auto data = open_task_data(config);
    Trainer trainer(new_task_model(config, *data), config);
    const int64_t tokens = data->train_batches()->next().ids.numel();
    const auto batches = data->train_batches();
    for (int update = 0; update < 5; ++update) {
      const StepReport report = trainer.step(*batches);
      EXPECT_EQ(report.model_tokens, tokens);  // tok/s counts all tokens, not only answers
      EXPECT_LT(report.tokens, tokens);
      EXPECT_GT(report.utilisation, 0.0) << peak;
      EXPECT_LE(report.utilisation, 1.0) << peak;
    }
  }
}

}  // namespace
}  // namespace diffattn::train::speed_test
