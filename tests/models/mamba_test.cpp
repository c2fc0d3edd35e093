// SPDX-License-Identifier: Apache-2.0
//
// The selective scan against the plain loop in double, its laws, and the Mamba layer's, on every
// device of this machine.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "diffattn/error.h"
#include "nn/parts/feed_forward.h"
#include "nn/parts/mamba.h"
#include "ops/layers/selective_scan.h"

namespace diffattn::mamba_test {
namespace {

using torch::Tensor;

/// Random inputs of a scan.
struct Inputs {
  Tensor u, delta, a, b, c, d;

  Inputs(int64_t batch, int64_t length, int64_t channels, int64_t states,
         torch::ScalarType type = torch::kFloat32) {
    const auto options = torch::TensorOptions().dtype(type);
    u = torch::randn({batch, length, channels}, options);
    delta = torch::randn({batch, length, channels}, options) * 2.0 - 1.0;
    a = -torch::rand({channels, states}, options) * 8.0 - 0.1;
    b = torch::randn({batch, length, states}, options);
    c = torch::randn({batch, length, states}, options);
    d = torch::randn({channels}, options);
  }
  std::vector<Tensor*> all() { return {&u, &delta, &a, &b, &c, &d}; }
  Inputs in(torch::ScalarType type) const {
    return each([&](Tensor& x) { x = x.to(type); });
  }
  Inputs on(torch::Device device) const {
    return each([&](Tensor& x) { x = x.to(device); });
  }
  /// Returns tokens [begin, end) of every sequence.
  Inputs tokens(int64_t begin, int64_t end) const {
    Inputs part = each([](Tensor&) {});
    for (Tensor* x : part.of_tokens()) *x = x->slice(1, begin, end);
    return part;
  }
  /// Returns one sequence of the batch.
  Inputs row(int64_t row) const {
    Inputs part = each([](Tensor&) {});
    for (Tensor* x : part.of_tokens()) *x = x->slice(0, row, row + 1);
    return part;
  }
  std::vector<Tensor*> of_tokens() { return {&u, &delta, &b, &c}; }
  ScanResult run(const ScanOptions& options = {}) {
    return selective_scan(u, delta, a, b, c, d, options);
  }
  std::vector<Tensor> gradients(const Tensor& dy, const ScanOptions& options = {}) {
    std::vector<Tensor> leaves;
    for (Tensor* x : all()) leaves.push_back(x->requires_grad_());
    return torch::autograd::grad({run(options).y}, leaves, {dy});
  }

 private:
  template <class Change>
  Inputs each(const Change& change) const {
    Inputs copy = *this;
    for (Tensor* x : copy.all()) {
      *x = x->detach();
      change(*x);
    }
    return copy;
  }
};

/// The places of gradients() that belong to single tokens.
constexpr std::array<size_t, 4> kOfTokens{0, 1, 3, 4};

std::vector<torch::Device> devices() {
  std::vector<torch::Device> all{torch::kCPU};
  if (torch::cuda::is_available()) all.emplace_back(torch::kCUDA);
  return all;
}

void expect_near(const Tensor& actual, const Tensor& expected, double bound,
                 const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const Tensor wide = expected.to(torch::kFloat64);
  const double error = (actual.to(torch::kFloat64) - wide).abs().max().item<double>();
  EXPECT_LE(error, bound * (1.0 + wide.abs().max().item<double>())) << what;
}

/// Expects the same bits on a CPU. A GPU may take rows in parts of other lengths.
void expect_same(const Tensor& actual, const Tensor& expected, const std::string& what) {
  if (expected.is_cuda()) return expect_near(actual, expected, 1e-6, what);
  EXPECT_TRUE(torch::equal(actual, expected)) << what;
}

Tensor some_starts(int64_t batch, int64_t length) { return torch::rand({batch, length}) < 0.05; }

TEST(SelectiveScan, FloatsAgreeWithThePlainLoopInDouble) {
  torch::manual_seed(1);
  for (const auto [batch, length, channels, states] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                                       {2, 37, 21, 16},
                                                       {1, 200, 33, 16},
                                                       {3, 64, 16, 5},
                                                       {1, 129, 300, 8},
                                                       {2, 65, 48, 32}}) {
    for (const bool starts : {false, true}) {
      Inputs narrow(batch, length, channels, states);
      Inputs wide = narrow.in(torch::kFloat64);
      const Tensor state = torch::randn({batch, channels, states});
      auto options = ScanOptions().state(state);
      if (starts) options.starts(some_starts(batch, length));
      auto wide_options = options;
      wide_options.state(state.to(torch::kFloat64));
      const std::string what = c10::str(batch, " x ", length, " x ", channels, " x ", states);
      expect_near(narrow.run(options).y, wide.run(wide_options).y, 2e-6, what + " y");
      expect_near(narrow.run(options).state, wide.run(wide_options).state, 2e-6, what + " state");
      const Tensor dy = torch::randn({batch, length, channels});
      const auto actual = narrow.gradients(dy, options);
      const auto expected = wide.gradients(dy.to(torch::kFloat64), wide_options);
      for (size_t i = 0; i < actual.size(); ++i) {
        expect_near(actual[i], expected[i], 5e-6, what + c10::str(" gradient ", i));
      }
    }
  }
}

TEST(SelectiveScan, StatesMayGrowAndVanish) {
  torch::manual_seed(9);
  for (const bool grows : {false, true}) {  // two ways to compute
    Inputs narrow(1, 20, 16, 16);
    if (grows) narrow.a.select(0, 3).fill_(0.5);
    narrow.a.select(0, 4).fill_(-1e4);  // is 0 after one token
    narrow.a.select(0, 9).fill_(0.0);   // forgets nothing
    narrow.delta.select(2, 5).fill_(60.0);
    narrow.delta.select(2, 6).fill_(-60.0);
    narrow.delta.select(2, 7).fill_(1e6);
    narrow.delta.select(2, 8).fill_(-1e6);
    Inputs wide = narrow.in(torch::kFloat64);
    const ScanResult actual = narrow.run(), expected = wide.run();
    for (int64_t channel = 0; channel < 16; ++channel) {
      expect_near(actual.y.select(2, channel), expected.y.select(2, channel), 2e-6,
                  c10::str("channel ", channel, grows ? ", one grows" : ""));
    }
  }
}

TEST(SelectiveScan, NotANumberStays) {
  constexpr int64_t kChannels = 32, kBroken = 5;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double sign : {1.0, -1.0}) {
    for (size_t i = 0; i < 6; ++i) {  // each input in turn
      torch::manual_seed(10);
      Inputs inputs(1, 70, kChannels, 16);
      Tensor& x = *inputs.all()[i];
      const bool of_all = i == 3 || i == 4;  // b and c belong to every channel
      if (of_all)
        x.select(1, 0).fill_(std::copysign(nan, sign));
      else
        x.select(x.dim() == 3 ? 2 : 0, kBroken).fill_(std::copysign(nan, sign));
      const Tensor broken = inputs.run().y[0][0].isnan();
      EXPECT_EQ(broken.sum().item<int64_t>(), of_all ? kChannels : 1) << i;
      EXPECT_TRUE(broken[kBroken].item<bool>()) << i;
    }
  }
}

TEST(SelectiveScan, GradientsAgreeWithDifferences) {
  torch::manual_seed(2);
  Inputs inputs(2, 5, 3, 4, torch::kFloat64);
  const auto options = ScanOptions().state(torch::randn({2, 3, 4}, torch::kFloat64));
  const Tensor dy = torch::randn({2, 5, 3}, torch::kFloat64);
  const auto gradients = inputs.gradients(dy, options);
  constexpr double kStep = 1e-6;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Inputs moved = inputs.in(torch::kFloat64);
    Tensor& x = *moved.all()[i];
    x = x.clone();
    for (int64_t j = 0; j < x.numel(); ++j) {
      const auto loss = [&](double by) {
        x.view(-1)[j] += by;
        const double value = (moved.run(options).y * dy).sum().item<double>();
        x.view(-1)[j] -= by;
        return value;
      };
      const double expected = (loss(kStep) - loss(-kStep)) / (2.0 * kStep);
      EXPECT_NEAR(gradients[i].view(-1)[j].item<double>(), expected, 1e-6) << i << ", " << j;
    }
  }
}

TEST(SelectiveScan, PartsOfASequenceAndOfABatchEqualTheWhole) {
  torch::manual_seed(3);
  Inputs drawn(3, 150, 40, 16);
  // Some tokens of some channels forget everything.
  drawn.delta.masked_fill_(torch::rand_like(drawn.delta) < 0.001, 300.0);
  for (const torch::Device device : devices()) {
    Inputs whole = drawn.on(device);
    const ScanResult expected = whole.run();
    Tensor state;
    for (int64_t begin = 0; begin < 150;) {
      const int64_t end = std::min<int64_t>(150, begin + 1 + begin % 61);
      const ScanResult result =
          whole.tokens(begin, end)
              .run(state.defined() ? ScanOptions().state(state) : ScanOptions());
      expect_same(result.y, expected.y.slice(1, begin, end), c10::str(device, " from ", begin));
      state = result.state;
      begin = end;
    }
    expect_same(state, expected.state, c10::str(device, " state"));
    for (int64_t row = 0; row < 3; ++row) {
      expect_same(whole.row(row).run().y, expected.y.slice(0, row, row + 1),
                  c10::str(device, " row ", row));
    }
  }
}

TEST(SelectiveScan, SequencesOfABatchHaveTheGradientsOfSingleOnes) {
  torch::manual_seed(11);
  const Inputs drawn(3, 70, 40, 16);
  const Tensor weights = torch::randn({3, 70, 40});
  for (const torch::Device device : devices()) {
    Inputs whole = drawn.on(device);
    const Tensor dy = weights.to(device);
    const auto together = whole.gradients(dy);
    Tensor da = torch::zeros_like(together[2]), dd = torch::zeros_like(together[5]);
    for (int64_t row = 0; row < 3; ++row) {
      const auto alone = drawn.on(device).row(row).gradients(dy.slice(0, row, row + 1));
      for (const size_t i : kOfTokens) {
        expect_same(together[i].slice(0, row, row + 1), alone[i],
                    c10::str(device, " row ", row, ", gradient ", i));
      }
      da += alone[2];
      dd += alone[5];
    }
    expect_near(together[2], da, 1e-6, c10::str(device, " of A"));
    expect_near(together[5], dd, 1e-6, c10::str(device, " of D"));
  }
}

TEST(SelectiveScan, PaddingChangesNoGradient) {
  torch::manual_seed(12);
  constexpr int64_t kPadding = 67, kTokens = 70;  // the chunks of the text begin elsewhere
  const Inputs drawn(2, kPadding + kTokens, 40, 16);
  Tensor weights = torch::randn({2, kPadding + kTokens, 40});
  Tensor starts = torch::zeros({2, kPadding + kTokens});
  weights.slice(1, 0, kPadding).zero_();
  starts.select(1, kPadding).fill_(1.0);
  for (const torch::Device device : devices()) {
    const Tensor dy = weights.to(device);
    const auto options = ScanOptions().starts(starts.to(torch::kBool).to(device));
    const auto padded = drawn.on(device).gradients(dy, options);
    const auto alone =
        drawn.on(device).tokens(kPadding, kPadding + kTokens).gradients(dy.slice(1, kPadding));
    for (const size_t i : {2, 5}) {
      expect_near(padded[i], alone[i], 2e-6, c10::str(device, " gradient ", i));
    }
    for (const size_t i : kOfTokens) {
      expect_near(padded[i].slice(1, kPadding), alone[i], 2e-6, c10::str(device, " gradient ", i));
      EXPECT_EQ(padded[i].slice(1, 0, kPadding).count_nonzero().item<int64_t>(), 0)
          << device << " gradient " << i;
    }
  }
}

TEST(SelectiveScan, StartsSeparateSequencesInBothDirections) {
  torch::manual_seed(4);
  const Inputs drawn(1, 90, 20, 16);
  const Tensor weights = torch::randn({1, 90, 20});
  const std::vector<int64_t> offsets{0, 1, 40, 70, 90};
  Tensor starts = torch::zeros({1, 90}, torch::kBool);
  for (const int64_t at : offsets) {
    if (at < 90) starts[0][at] = true;
  }
  for (const torch::Device device : devices()) {
    Inputs packed = drawn.on(device);
    const Tensor dy = weights.to(device);
    const auto options = ScanOptions().starts(starts.to(device));
    const Tensor y = packed.run(options).y;
    const auto gradients = packed.gradients(dy, options);
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      Inputs part = drawn.on(device).tokens(offsets[s], offsets[s + 1]);
      const auto slice = [&](const Tensor& x) { return x.slice(1, offsets[s], offsets[s + 1]); };
      expect_near(slice(y), part.run().y, 1e-6, c10::str(device, " y"));
      const auto own = part.gradients(slice(dy));
      for (const size_t i : kOfTokens) {
        expect_near(slice(gradients[i]), own[i], 2e-6, c10::str(device, " gradient ", i));
      }
    }
  }
}

TEST(SelectiveScan, IsTheSameOnAnyNumberOfThreads) {
  torch::manual_seed(5);
  Inputs inputs(2, 100, 400, 16);
  const Tensor dy = torch::randn({2, 100, 400});
  const int before = torch::get_num_threads();
  torch::set_num_threads(1);
  const auto one = inputs.gradients(dy);
  torch::set_num_threads(2);
  const auto two = inputs.gradients(dy);
  torch::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
}

TEST(SelectiveScan, TheGpuAgreesWithThePlainLoopInDouble) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: needs a GPU";
  torch::manual_seed(9);
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    for (const auto [batch, length, channels, states] : {std::array<int64_t, 4>{1, 1, 8, 8},
                                                         {2, 37, 21, 16},
                                                         {1, 200, 300, 16},
                                                         {2, 65, 48, 32},
                                                         {1, 33, 130, 64}}) {
      Inputs wide = Inputs(batch, length, channels, states).in(type).in(torch::kFloat64);
      Inputs there = wide;
      for (Tensor* x : there.all())
        *x = x->to(torch::kCUDA, x == &there.a || x == &there.d ? torch::kFloat32 : type);
      const Tensor starts = some_starts(batch, length);
      const Tensor state = torch::randn({batch, channels, states});
      const auto here = ScanOptions().state(state.to(torch::kFloat64)).starts(starts);
      const auto on_gpu = ScanOptions().state(state.cuda()).starts(starts.cuda());
      const double bound = type == torch::kFloat32 ? 1e-5 : 2e-2;
      const std::string what =
          c10::str(type, " ", batch, " x ", length, " x ", channels, " x ", states);
      expect_near(there.run(on_gpu).y.cpu(), wide.run(here).y, bound, what + " y");
      expect_near(there.run(on_gpu).state.cpu(), wide.run(here).state, bound, what + " state");
      const Tensor dy = torch::randn({batch, length, channels}).to(type);
      const auto actual = there.gradients(dy.cuda(), on_gpu);
      const auto expected = wide.gradients(dy.to(torch::kFloat64), here);
      const auto again = there.gradients(dy.cuda(), on_gpu);
      for (size_t i = 0; i < actual.size(); ++i) {
        expect_near(actual[i].cpu(), expected[i], bound, what + c10::str(" gradient ", i));
        EXPECT_TRUE(torch::equal(actual[i], again[i])) << what;
      }
    }
  }
}

TEST(SelectiveScan, RefusesWrongShapesAndTypes) {
  const auto message = [](Inputs inputs) -> std::string {
    try {
      inputs.run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Inputs inputs(1, 3, 4, 2);
  Inputs bad = inputs;
  bad.b = torch::zeros({1, 3, 3});
  EXPECT_NE(message(bad).find("'selective_scan.b': expected [1, 3, 2], got [1, 3, 3]"),
            std::string::npos);
  bad = inputs;
  bad.c = bad.c.to(torch::kBFloat16);
  EXPECT_NE(message(bad).find("'selective_scan.c': expected Float"), std::string::npos);
  bad = inputs;
  bad.u = torch::zeros({3, 4});
  EXPECT_NE(message(bad).find("'selective_scan.u': expected [B, L, E]"), std::string::npos);
}

TEST(Mamba, CachedStepsAndPaddingEqualTheWhole) {
  const torch::NoGradGuard no_grad;
  for (const torch::Device device : devices()) {
    torch::manual_seed(6);
    nn::Mamba layer(nn::MambaOptions(24).state(8));
    const Tensor x = torch::randn({2, 20, 24}).to(device);
    layer->to(device);
    const Tensor whole = layer->forward({.x = x});
    nn::KvCache cache;
    for (int64_t begin = 0; begin < 20;) {
      const int64_t end = std::min<int64_t>(20, begin + 1 + begin / 2);
      nn::AttentionInput input{.x = x.slice(1, begin, end)};
      input.cache = &cache;
      expect_near(layer->forward(input), whole.slice(1, begin, end), 1e-6,
                  c10::str(device, " from ", begin));
      EXPECT_EQ(cache.length(), end);
      begin = end;
    }
    EXPECT_THROW(cache.rewind(3), Error);
    cache.rewind(0);
    EXPECT_EQ(cache.length(), 0);
  }
}

TEST(Mamba, PaddingChangesNeitherOutputsNorGradients) {
  for (const torch::Device device : devices()) {
    torch::manual_seed(13);
    nn::Mamba layer(nn::MambaOptions(24).state(8));
    const Tensor x = torch::randn({2, 20, 24}).to(device);
    const Tensor dy = torch::randn({2, 20, 24}).to(device);
    layer->to(device);
    const auto run = [&](int64_t padding) {
      nn::AttentionInput input{.x = torch::constant_pad_nd(x, {0, 0, padding, 0}, 7.0).clone()};
      input.x.requires_grad_();
      if (padding > 0) {
        input.mask.key_starts(torch::full({2}, padding, torch::kLong).to(device));
      }
      std::vector<Tensor> leaves = layer->parameters();
      leaves.push_back(input.x);
      const Tensor y = layer->forward(input).slice(1, padding);
      auto results = torch::autograd::grad({y}, leaves, {dy});
      results.back() = results.back().slice(1, padding);
      results.push_back(y.detach());
      return results;
    };
    const auto expected = run(0), actual = run(5);
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_near(actual[i], expected[i], 2e-6, c10::str(device, ", ", i));
    }
  }
}

TEST(Mamba, EarlierTokensDoNotDependOnLaterOnes) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  nn::Mamba layer(nn::MambaOptions(16));
  const Tensor x = torch::randn({1, 12, 16});
  Tensor changed = x.clone();
  changed.slice(1, 9).add_(1.0);
  EXPECT_TRUE(torch::equal(layer->forward({.x = x}).slice(1, 0, 9),
                           layer->forward({.x = changed}).slice(1, 0, 9)));
}

TEST(PolyNorm, IsTheSumOfThreeNorms) {
  torch::manual_seed(8);
  nn::PolyNorm norm;
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(torch::tensor({0.3f, -0.7f, 1.1f}));
  norm->bias.fill_(0.25);
  const Tensor x = torch::randn({3, 5, 40});
  const auto n = [](const Tensor& z) {
    return z / (z.pow(2).mean(-1, /*keepdim=*/true) + 1e-6).sqrt();
  };
  const Tensor expected = 0.3 * n(x.pow(3)) - 0.7 * n(x.pow(2)) + 1.1 * n(x) + 0.25;
  expect_near(norm->forward(x), expected, 1e-6, "float32");
  const Tensor narrow = norm->forward(x.to(torch::kBFloat16));
  EXPECT_EQ(narrow.scalar_type(), torch::kBFloat16);
  expect_near(narrow.to(torch::kFloat32), expected, 2e-2, "bfloat16");
}

}  // namespace
}  // namespace diffattn::mamba_test
