// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing of whole models: gradients, memory, and recomputation.

#include <ATen/autocast_mode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "diffattn/models/model_folder.h"
#include "diffattn/nn/decoder.h"
#include "tests/ops/operator_calls.h"

namespace diffattn::train::activation_checkpointing_test {
namespace {

using testing::expect_same_bits;
using testing::OperatorCalls;
using torch::Tensor;

constexpr KeepAttention kKeeps[] = {KeepAttention::kNothing, KeepAttention::kSums,
                                    KeepAttention::kResults};
constexpr int64_t kVocabulary = 61, kLayers = 2;

nn::ModelConfig config_of(const std::string& attention, int64_t head_dim = 8) {
  nn::ModelConfig config;
  config.attention = attention;
  config.vocab_size = kVocabulary;
  config.hidden_size = 4 * head_dim;
  config.intermediate_size = 6 * head_dim;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = head_dim;
  config.initializer_range = 0.2;
  return config;
}

nn::DecoderInput rows_of(int64_t batch, int64_t length) {
  nn::DecoderInput input;
  input.ids = torch::arange(batch * length).mul(7).remainder(kVocabulary).view({batch, length});
  return input;
}

/// Returns three packed documents.
nn::DecoderInput packed() {
  nn::DecoderInput input;
  input.ids = torch::arange(40).mul(11).remainder(kVocabulary);
  input.mask.cu_seqlens_q(torch::tensor({0, 17, 18, 40}, torch::kInt));
  return input;
}

Tensor loss_of(nn::CausalLM& model, const nn::DecoderInput& input) {
  return model->forward(input).last.to(torch::kFloat32).square().sum();
}

std::vector<Tensor> taken_gradients(nn::CausalLM& model) {
  std::vector<Tensor> found;
  for (const auto& [name, weight] : models::named_weights(*model)) {
    found.push_back(weight.grad().defined() ? weight.grad().clone() : Tensor());
  }
  model->zero_grad();
  return found;
}

std::vector<Tensor> gradients_of(nn::CausalLM& model, const nn::DecoderInput& input) {
  loss_of(model, input).backward();
  return taken_gradients(model);
}

TEST(ActivationCheckpointing, GivesTheBitsOfOneRun) {
  for (const char* attention :
       {"diffllama", "transformer", "microsoft_v2", "dint", "introspective"}) {
    torch::manual_seed(6);
    nn::CausalLM model(config_of(attention));
    for (const nn::DecoderInput& input : {rows_of(2, 13), rows_of(9, 1), packed()}) {
      model->model->checkpoint_activations(false);
      const auto want = gradients_of(model, input);
      for (const KeepAttention keep : kKeeps) {
        model->model->checkpoint_activations(true, keep);
        expect_same_bits(gradients_of(model, input), want, attention);
      }
    }
  }
}

TEST(ActivationCheckpointing, GraphsMayBeGoneThroughTwice) {
  torch::manual_seed(7);
  nn::CausalLM model(config_of("diffllama"));
  const nn::DecoderInput input = rows_of(2, 9);
  const auto want = gradients_of(model, input);
  for (const KeepAttention keep : kKeeps) {
    model->model->checkpoint_activations(true, keep);
    const Tensor loss = loss_of(model, input);
    loss.backward({}, /*retain_graph=*/true);
    taken_gradients(model);
    loss.backward();
    expect_same_bits(taken_gradients(model), want, "second pass");
  }
}

/// Counts the bytes that torch allocates on the CPU during its lifetime.
class HeldBytes {
 public:
  HeldBytes() : guard_(c10::DebugInfoKind::PROFILER_STATE, ledger_) {}
  int64_t count() const { return ledger_->bytes; }

 private:
  struct Ledger : c10::MemoryReportingInfoBase {
    std::atomic<int64_t> bytes{0};
    bool memoryProfilingEnabled() const override { return true; }
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      bytes += size;
    }
  };
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  c10::DebugInfoGuard guard_;
};

TEST(ActivationCheckpointing, KeepsWhatItSays) {
  torch::manual_seed(8);
  nn::CausalLM model(config_of("diffllama"));
  constexpr int64_t kBatch = 2, kLength = 50, kHidden = 32, kHeads = 2;
  const nn::DecoderInput input = rows_of(kBatch, kLength);
  const auto held = [&](bool checkpointed, KeepAttention keep) {
    model->model->checkpoint_activations(checkpointed, keep);
    const HeldBytes bytes;
    const Tensor loss = loss_of(model, input);
    return bytes.count();
  };
  held(true, KeepAttention::kNothing);  // creates the table of rotary angles once
  const int64_t nothing = held(true, KeepAttention::kNothing);
  EXPECT_EQ(held(true, KeepAttention::kSums), nothing);  // no kernel reuses sums here
  const int64_t rows = kBatch * kLength;
  EXPECT_EQ(held(true, KeepAttention::kResults) - nothing,
            kLayers * rows * (2 * kHidden + 2 * kHeads) * 4);  // out, o and two sums per head
  EXPECT_GT(held(false, KeepAttention::kNothing), nothing + 4 * kLayers * rows * kHidden * 4);
}

/// Checks that the backward pass frees each recomputed layer while the graph still exists.
/// Otherwise the layers would use the memory that checkpointing saves.
TEST(ActivationCheckpointing, ReleasesLayerByLayer) {
  torch::manual_seed(8);
  nn::CausalLM model(config_of("diffllama"));
  const nn::DecoderInput input = rows_of(2, 50);
  const auto left = [&](bool checkpointed, KeepAttention keep) {
    model->model->checkpoint_activations(checkpointed, keep);
    const HeldBytes bytes;
    const Tensor loss = loss_of(model, input);
    loss.backward();
    const int64_t count = bytes.count();
    model->zero_grad();
    return count;
  };
  left(false, KeepAttention::kNothing);
  const int64_t plain = left(false, KeepAttention::kNothing);
  for (const KeepAttention keep : kKeeps) EXPECT_LE(left(true, keep), plain + 1024);
}

/// Returns the losses of a few updates in mixed precision, with the backward pass inside or outside
/// the autocast scope.
std::vector<double> mixed_losses(bool checkpointed, KeepAttention keep, bool backward_inside) {
  torch::manual_seed(13);
  nn::CausalLM model(config_of("diffllama"));
  model->model->checkpoint_activations(checkpointed, keep);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    const Tensor loss = loss_of(model, rows_of(2, 20));
    if (backward_inside) loss.backward();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    if (!backward_inside) loss.backward();
    losses.push_back(loss.item<double>());
    const torch::NoGradGuard no_grad;
    for (Tensor& weight : model->parameters()) {
      if (weight.grad().defined()) weight.sub_(weight.grad(), 1e-3);
    }
    model->zero_grad();
  }
  return losses;
}

TEST(ActivationCheckpointing, MixedPrecisionSeesTheWeightsOfItsStep) {
  for (const bool inside : {false, true}) {
    const auto want = mixed_losses(false, KeepAttention::kNothing, inside);
    EXPECT_NE(want[0], want[2]);
    for (const KeepAttention keep : kKeeps) {
      EXPECT_EQ(mixed_losses(true, keep, inside), want) << inside;
    }
  }
}

TEST(ActivationCheckpointing, KeptResultsAreNotComputedAgain) {
  torch::manual_seed(9);
  nn::CausalLM model(config_of("diffllama"));
  const auto forwards = [&](bool checkpointed, KeepAttention keep) {
    model->model->checkpoint_activations(checkpointed, keep);
    const OperatorCalls calls;
    gradients_of(model, rows_of(2, 9));
    return calls.of("diffattn::attention_forward");
  };
  const int once = forwards(false, KeepAttention::kNothing);
  EXPECT_GT(once, 0);
  EXPECT_EQ(forwards(true, KeepAttention::kResults), once);
  EXPECT_EQ(forwards(true, KeepAttention::kNothing), 2 * once);
}

/// Checks that a failed pass leaves no state for the next one.
TEST(ActivationCheckpointing, ErrorsLeaveNothingBehind) {
  torch::manual_seed(10);
  nn::CausalLM model(config_of("diffllama"));
  const nn::DecoderInput input = packed();
  const auto want = gradients_of(model, input);
  for (const KeepAttention keep : kKeeps) {
    model->model->checkpoint_activations(true, keep);
    nn::DecoderInput wrong = packed();
    wrong.mask.cu_seqlens_q(torch::tensor({0, 17, 18, 39}, torch::kInt));  // one row in no sequence
    EXPECT_ANY_THROW(loss_of(model, wrong)) << "in the first run";
    nn::DecoderInput changed = packed();
    changed.positions = torch::arange(40);
    const Tensor loss = loss_of(model, changed);
    changed.mask.cu_seqlens_q()->index_put_({3}, 39);
    EXPECT_ANY_THROW(loss.backward()) << "in the second run";
    model->zero_grad();
    expect_same_bits(gradients_of(model, input), want, "after errors");
    model->model->checkpoint_activations(false);
    expect_same_bits(gradients_of(model, input), want, "without checkpointing after errors");
  }
}

TEST(ActivationCheckpointing, ThreadsKeepTheirOwn) {
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(11 + i);
    nn::CausalLM model(config_of(i == 0 ? "diffllama" : "dint"));
    threads.emplace_back([&equal, i, model]() mutable {
      const nn::DecoderInput input = rows_of(1 + i, 20);
      const auto want = gradients_of(model, input);
      model->model->checkpoint_activations(true, KeepAttention::kResults);
      for (int round = 0; round < 5; ++round) {
        const auto got = gradients_of(model, input);
        bool same = true;
        for (size_t j = 0; j < want.size(); ++j) {
          same = same && (!want[j].defined() || torch::equal(got[j], want[j]));
        }
        equal += same;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 10);
}

TEST(ActivationCheckpointing, OnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const torch::Device cuda(torch::kCUDA, 0);
  torch::manual_seed(12);
  nn::CausalLM model(config_of("diffllama", /*head_dim=*/64));
  model->to(cuda);
  nn::DecoderInput input = rows_of(2, 300);
  input.ids = input.ids.to(cuda);
  const auto run = [&](bool checkpointed, KeepAttention keep) {
    model->model->checkpoint_activations(checkpointed, keep);
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, torch::kBFloat16);
    const Tensor loss = loss_of(model, input);
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::clear_cache();
    loss.backward();
    return taken_gradients(model);
  };
  const auto want = run(false, KeepAttention::kNothing);
  expect_same_bits(run(true, KeepAttention::kNothing), want, "nothing kept");
  expect_same_bits(run(true, KeepAttention::kResults), want, "results kept");
  const OperatorCalls calls;
  const auto got = run(true, KeepAttention::kSums);
  const bool hopper = backend_for(cuda, torch::kBFloat16) == "sm90";
  EXPECT_EQ(calls.of("diffattn::attention_recompute"), hopper ? kLayers : 0);
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].defined()) continue;
    const double size = want[i].norm().item<double>();
    EXPECT_LT((got[i] - want[i]).norm().item<double>(), 0.02 * size + 1e-6) << i;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

}  // namespace
}  // namespace diffattn::train::activation_checkpointing_test
