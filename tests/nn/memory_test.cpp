// SPDX-License-Identifier: Apache-2.0
//
// Peak memory of operations that must not store whole maps: forward and backward pass at a length
// where one map takes 36 MiB.

#include <fstream>

#include "diffattn/nn/dint_attention.h"
#include "diffattn/nn/introspective_attention.h"
#include "diffattn/nn/noise_reduction.h"
#include "diffattn/nn/token_feature_enhancer.h"
#include "tests/nn/layer_laws.h"

namespace diffattn::testing::memory_test {
namespace {

using namespace diffattn::nn;

constexpr int64_t kLength = 3072, kHeads = 1, kMiB = 1 << 20;

/// Returns the peak resident size since the last reset, in bytes; -1 if the system does not report
/// it.
int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes << 10;
  }
  return -1;
}

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && peak_memory() >= 0;
}

/// Expects that `compute` and its gradients add less than `limit` bytes to the peak memory.
void expect_peak_below(int64_t limit, const std::vector<Tensor>& leaves, const char* what,
                       const std::function<Tensor()>& compute) {
  if (!reset_peak_memory()) GTEST_SKIP() << "skipped: this system does not report peak memory";
  const int64_t before = peak_memory();
  torch::autograd::grad({compute().square().sum()}, leaves);
  EXPECT_LT((peak_memory() - before) / kMiB, limit / kMiB) << what << ", MiB";
}

TEST(Memory, NoWholeMaps) {
  torch::manual_seed(41);
  const auto make = [](int64_t width) {
    return torch::randn({1, kLength, kHeads, width}).requires_grad_(true);
  };
  const Tensor q1 = make(16), q2 = make(16), k1 = make(16), k2 = make(16), v = make(16);
  HeadTensors h{.q1 = q1,
                .q2 = q2,
                .k1 = k1,
                .k2 = k2,
                .v = v,
                .lambda = torch::tensor(0.5f),
                .options = AttentionOptions()};
  // About twenty blocks of 8 MiB exist at a time; whole maps would take 20 * 36 MiB.
  expect_peak_below(300 * kMiB, {q1, k2}, "key weights",
                    [&] { return token_weights(h, TokenWeight::kKey); });
  expect_peak_below(300 * kMiB, {q1, k2, v}, "noise reduction",
                    [&] { return thresholded_attention(h, 0.1, ThresholdMode::kSoft); });
  h.options.causal(true);
  expect_peak_below(64 * kMiB, {q1, k2, v}, "DINT", [&] { return dint_heads(Route::kFused, h); });
  for (const BankSchedule schedule : {BankSchedule::kFlash1, BankSchedule::kFlash2}) {
    expect_peak_below(100 * kMiB, {q1, k2, v}, "introspective bank", [&] {
      return bank_attention(schedule, q1, {k1, k2}, {v, v}, h.options);
    });
  }
}

}  // namespace
}  // namespace diffattn::testing::memory_test
