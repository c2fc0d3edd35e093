// SPDX-License-Identifier: Apache-2.0
//
// Attention under activation checkpointing: a run that saves a checkpoint, and one that starts from
// it.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <functional>
#include <set>

#include "diffattn/kernels/error.h"
#include "ops/dispatch/attention_checkpoint.h"
#include "tests/ops/operator_calls.h"
#include "tests/ops/random_case.h"

namespace diffattn::testing::attention_checkpoint_test {
namespace {

using torch::Tensor;

constexpr KeepAttention kKeeps[] = {KeepAttention::kNothing, KeepAttention::kSums,
                                    KeepAttention::kResults};
constexpr const char* kForward = "diffattn::attention_forward";
constexpr const char* kRecompute = "diffattn::attention_recompute";

/// q1 q2 k1 k2 v lambda [norm_weight] [additive mask] and the options that name the last two.
struct Call {
  std::vector<Tensor> leaves;
  AttentionOptions options;

  Tensor run() const {
    const auto& t = leaves;
    return attention(t[0], t[1], t[2], t[3], t[4], t[5], options);
  }
  CheckpointedAttention run_with_checkpoint(KeepAttention keep) const {
    const auto& t = leaves;
    return attention_with_checkpoint(t[0], t[1], t[2], t[3], t[4], t[5], options, keep);
  }
  Tensor run_from(const AttentionCheckpoint& checkpoint) const {
    const auto& t = leaves;
    return attention_from_checkpoint(t[0], t[1], t[2], t[3], t[4], t[5], options, checkpoint);
  }

  /// Returns a result and the gradients of all leaves at a fixed cotangent, which every type can
  /// represent.
  std::vector<Tensor> with_gradients(const Tensor& out) const {
    const Tensor cotangent =
        torch::arange(out.numel()).mul(0.37).cos().view(out.sizes()).to(torch::kBFloat16);
    auto found = torch::autograd::grad({out}, leaves, {cotangent.to(out.options())}, false, false,
                                       /*allow_unused=*/true);
    found.insert(found.begin(), out.detach());
    return found;
  }
};

Call random_call(uint64_t seed, torch::ScalarType dtype) {
  const RandomCase c = make_random_case(seed, dtype);
  Call call;
  for (const Tensor& tensor : c.tensors) {
    call.leaves.push_back(tensor.detach().requires_grad_(true));
  }
  call.options = c.options_with(call.leaves);
  return call;
}

TEST(TorchCheckpoint, GivesTheBitsOfOneRun) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    for (uint64_t seed = 700; seed < 730; ++seed) {
      const Call call = random_call(seed, dtype);
      const auto want = call.with_gradients(call.run());
      for (const KeepAttention keep : kKeeps) {
        const std::string what =
            "seed " + std::to_string(seed) + ", keep " + std::to_string(static_cast<int>(keep));
        const CheckpointedAttention first = call.run_with_checkpoint(keep);
        ASSERT_FALSE(first.out.requires_grad());
        ASSERT_TRUE(torch::equal(first.out, want[0])) << what;
        ASSERT_EQ(first.checkpoint.out.defined(), keep == KeepAttention::kResults);
        ASSERT_EQ(first.checkpoint.lse1.defined(), keep == KeepAttention::kResults);  // on a CPU
        for (int run = 0; run < 2; ++run) {  // two graphs may start from one checkpoint
          expect_same_bits(call.with_gradients(call.run_from(first.checkpoint)), want, what);
        }
        ASSERT_FALSE(first.checkpoint.out.defined() && first.checkpoint.out.requires_grad())
            << what;
      }
    }
  }
}

TEST(TorchCheckpoint, SavedResultsNeedNoForward) {
  const Call call = random_call(701, torch::kFloat32);
  for (const KeepAttention keep : kKeeps) {
    const CheckpointedAttention first = call.run_with_checkpoint(keep);
    const OperatorCalls calls;
    const Tensor out = call.run_from(first.checkpoint);
    EXPECT_EQ(calls.of(kForward) == 0, keep == KeepAttention::kResults);
    EXPECT_EQ(calls.of(kRecompute), 0);  // CPUs have no such kernel
    EXPECT_TRUE(out.requires_grad());
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(call.run_from(first.checkpoint), out));
    EXPECT_FALSE(call.run_from(first.checkpoint).requires_grad());
  }
}

TEST(TorchCheckpoint, AutocastInBothRuns) {
  Call call = random_call(702, torch::kFloat32);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  const auto want = call.with_gradients(call.run());
  for (const KeepAttention keep : kKeeps) {
    const CheckpointedAttention first = call.run_with_checkpoint(keep);
    EXPECT_EQ(first.out.scalar_type(), torch::kBFloat16);
    expect_same_bits(call.with_gradients(call.run_from(first.checkpoint)), want, "autocast");
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TorchCheckpoint, ErrorsNameTheTensor) {
  const Call call = random_call(703, torch::kFloat32);
  const AttentionCheckpoint saved = call.run_with_checkpoint(KeepAttention::kResults).checkpoint;
  const auto expect_error = [&](const char* name,
                                const std::function<void(AttentionCheckpoint&)>& harm) {
    AttentionCheckpoint wrong = saved;
    harm(wrong);
    const std::string message = message_of([&] { call.run_from(wrong); });
    EXPECT_EQ(message.find(name) != std::string::npos, true) << name << ": '" << message << "'";
  };
  expect_error("lse1", [](AttentionCheckpoint& c) { c.lse1 = c.lse1.to(torch::kFloat64); });
  expect_error("lse2", [](AttentionCheckpoint& c) { c.lse2 = torch::zeros({1, 1, 1}); });
  expect_error("out", [](AttentionCheckpoint& c) { c.out = c.out.to(torch::kBFloat16); });
  expect_error("o2", [](AttentionCheckpoint& c) { c.o2 = torch::zeros({1, 1, 1, 1}); });
  expect_error("checkpoint", [](AttentionCheckpoint& c) { c.lse2 = Tensor(); });
  expect_error("checkpoint", [](AttentionCheckpoint& c) { c.o = Tensor(); });
  Call wider = call;
  wider.leaves[1] = torch::zeros({1});
  EXPECT_NE(message_of([&] { wider.run_with_checkpoint(KeepAttention::kResults); }).find("q2"),
            std::string::npos);
}

const torch::Device kCuda(torch::kCUDA, 0);

class CudaCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    limit_backend("");
  }
};

struct Widths {
  int64_t head, value;
};
constexpr Widths kWidths[] = {{64, 128}, {64, 64}, {128, 128}, {128, 256}};

/// Returns a call that the sm90 kernels support. A large `spread` of q gives peaked rows, whose
/// gradients need the rounding errors of o and o2.
Call gpu_call(Widths widths, int kind, torch::ScalarType dtype, double spread) {
  torch::manual_seed(40 + kind);
  const bool packed = kind == 3;
  const auto make = [&](int64_t heads, int64_t width, double scale) {
    const std::vector<int64_t> sizes = packed ? std::vector<int64_t>{410, heads, width}
                                              : std::vector<int64_t>{2, 205, heads, width};
    return torch::randn(sizes).mul(scale).to(dtype);
  };
  Call call;
  call.leaves = {
      make(4, widths.head, spread), make(4, widths.head, spread),
      make(2, widths.head, 1.0),    make(2, widths.head, 1.0),
      make(2, widths.value, 1.0),   torch::tensor({0.4, -0.3, 0.8, 0.1}).to(torch::kFloat32)};
  call.options.causal(kind != 1).norm_eps(1e-5).out_scale(0.8);
  if (kind == 0) {
    call.leaves.push_back(torch::rand({widths.value}).add(0.5));
    call.options.norm_weight(call.leaves.back());
  }
  if (kind == 1) call.options.key_lengths(torch::tensor({205, 130}, torch::kInt));
  if (kind == 2) call.options.window(70).key_starts(torch::tensor({0, 33}, torch::kInt));
  if (packed) {
    const Tensor offsets = torch::tensor({0, 130, 131, 410}, torch::kInt);
    call.options.cu_seqlens_q(offsets).cu_seqlens_k(offsets);
  }
  return call;
}

/// Copies a call to a device, with activations in `dtype`.
Call moved(const Call& call, torch::Device device, torch::ScalarType dtype) {
  Call result;
  for (size_t i = 0; i < call.leaves.size(); ++i) {
    const auto type = i < 5 || dtype == torch::kFloat64 ? dtype : torch::kFloat32;
    result.leaves.push_back(call.leaves[i].to(device, type).detach().requires_grad_(true));
  }
  result.options = call.options;
  const auto move = [&](const std::optional<Tensor>& t) {
    return t ? std::optional(t->to(device)) : std::nullopt;
  };
  result.options.key_lengths(move(call.options.key_lengths()))
      .key_starts(move(call.options.key_starts()))
      .cu_seqlens_q(move(call.options.cu_seqlens_q()))
      .cu_seqlens_k(move(call.options.cu_seqlens_k()));
  if (call.options.norm_weight()) result.options.norm_weight(result.leaves[6]);
  return result;
}

bool has_sm90() { return backend_for(kCuda, torch::kBFloat16) == "sm90"; }

TEST_F(CudaCheckpoint, SavedResultsGiveTheBitsOfOneRun) {
  for (const Widths& widths : kWidths) {
    for (int kind = 0; kind < 4; ++kind) {
      const Call call =
          moved(gpu_call(widths, kind, torch::kBFloat16, 1.0), kCuda, torch::kBFloat16);
      const auto want = call.with_gradients(call.run());
      const CheckpointedAttention first = call.run_with_checkpoint(KeepAttention::kResults);
      EXPECT_TRUE(torch::equal(first.out, want[0]));
      const OperatorCalls calls;
      const Tensor out = call.run_from(first.checkpoint);
      EXPECT_EQ(calls.of(kForward) + calls.of(kRecompute), 0);
      expect_same_bits(call.with_gradients(out), want, "kind " + std::to_string(kind));
    }
  }
}

/// With saved lse1 and lse2, o is a sum of the same terms in another order. Its error is at
/// most 1.5 times that of the forward plus a small share of its norm. The share is larger for the
/// gradient of lambda, which sums terms of all rows that cancel.
TEST_F(CudaCheckpoint, SavedSumsErrAsOneRunDoes) {
  constexpr size_t kLambdaGradient = 6;
  double worst = 0.0;
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    const double small = dtype == torch::kBFloat16 ? 1e-3 : 2e-4;
    for (const Widths& widths : kWidths) {
      for (int i = 0; i < 8; ++i) {
        const Call given = gpu_call(widths, i % 4, dtype, i < 4 ? 1.0 : 8.0);
        limit_backend("reference");
        const Call exact = moved(given, torch::kCPU, torch::kFloat64);
        const auto truth = exact.with_gradients(exact.run());
        limit_backend("");
        const Call call = moved(given, kCuda, dtype);
        const auto once = call.with_gradients(call.run());
        const CheckpointedAttention first = call.run_with_checkpoint(KeepAttention::kSums);
        const bool saves_sums = has_sm90() && widths.value <= 128;
        ASSERT_EQ(first.checkpoint.lse1.defined(), saves_sums);
        ASSERT_EQ(first.checkpoint.o2.defined(), saves_sums);
        ASSERT_FALSE(first.checkpoint.out.defined() || first.checkpoint.o.defined());
        const auto restored = call.with_gradients(call.run_from(first.checkpoint));
        for (size_t j = 0; j < truth.size(); ++j) {
          const auto error = [&](const Tensor& t) {
            return (t.to(torch::kCPU, torch::kFloat64) - truth[j]).norm().item<double>();
          };
          const double size = truth[j].norm().item<double>();
          const double share = j == kLambdaGradient ? 10 * small : small;
          EXPECT_LE(error(restored[j]), 1.5 * error(once[j]) + share * size)
              << dtype << ", D " << widths.head << ", Dv " << widths.value << ", case " << i
              << ", tensor " << j << ", size " << size;
          if (error(once[j]) > share * size)
            worst = std::max(worst, error(restored[j]) / error(once[j]));
        }
      }
    }
  }
  std::printf("worst error of two runs / of one %.2f\n", worst);
}

/// Returns the names of the kernels that `run` launches.
std::set<std::string> kernels_of(const std::function<void()>& run) {
  namespace profiler = torch::autograd::profiler;
  namespace impl = torch::profiler::impl;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities{impl::ActivityType::CPU, impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  run();
  torch::cuda::synchronize();
  std::set<std::string> names;
  const auto result = profiler::disableProfiler();
  for (const auto& event : result->events()) {
    if (event.deviceType() == c10::DeviceType::CUDA) names.insert(event.name());
  }
  return names;
}

TEST_F(CudaCheckpoint, SavedSumsRunTheRecomputeKernel) {
  if (!has_sm90()) GTEST_SKIP() << "skipped: no GPU of compute capability 9.0";
  const Call call = moved(gpu_call({64, 128}, 0, torch::kBFloat16, 1.0), kCuda, torch::kBFloat16);
  const CheckpointedAttention first = call.run_with_checkpoint(KeepAttention::kSums);
  const auto ran = [&](const char* part, const AttentionCheckpoint& saved) {
    for (const std::string& name : kernels_of([&] { call.run_from(saved); })) {
      if (name.find(part) != std::string::npos) return true;
    }
    return false;
  };
  EXPECT_TRUE(ran("recompute_kernel", first.checkpoint));
  EXPECT_FALSE(ran("forward_kernel", first.checkpoint));
  EXPECT_TRUE(ran("forward_kernel", {}));
  limit_backend("sm80");  // no recompute kernel, so nothing is saved
  EXPECT_FALSE(call.run_with_checkpoint(KeepAttention::kSums).checkpoint.lse1.defined());
  const auto want = call.with_gradients(call.run());
  const auto got = call.with_gradients(call.run_from(first.checkpoint));  // saved by sm90 kernels
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT((got[i] - want[i]).norm().item<double>(), 0.02 * want[i].norm().item<double>()) << i;
  }
}

}  // namespace
}  // namespace diffattn::testing::attention_checkpoint_test
