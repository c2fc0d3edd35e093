// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/nn/attention_layer.h"

/// Checks of laws that every attention layer obeys, in float64.
namespace diffattn::testing {

using nn::AttentionInput;
using nn::AttentionLayer;
using nn::AttentionMask;
using torch::Tensor;

inline void expect_close(const Tensor& got, const Tensor& want, const std::string& what,
                         double tolerance = 1e-12) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (want.numel() == 0) return;
  const Tensor error = (got - want).abs().flatten();
  const int64_t at = error.argmax().item<int64_t>();
  const double scale = std::max(1.0, want.abs().max().item<double>());
  // The comparison is false for NaN, so NaN fails.
  EXPECT_TRUE(error[at].item<double>() <= tolerance * scale)
      << what << ": element " << at << " is " << got.flatten()[at].item<double>() << ", expected "
      << want.flatten()[at].item<double>();
}

/// Returns the message of the exception that `call` throws.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_REFUSAL(call, option)                                                  \
  EXPECT_NE(error_of([&] { call; }).find("argument '" option "'"), std::string::npos) \
      << error_of([&] { call; })

/// Compares analytic with numeric derivatives of sum(weights * compute()) along one random
/// direction for each leaf.
inline void expect_gradients(const std::vector<std::pair<std::string, Tensor>>& leaves,
                             const std::function<Tensor()>& compute, double tolerance = 2e-7) {
  const Tensor first = compute();
  const Tensor weights = torch::randn(first.sizes(), first.options().requires_grad(false));
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf);
  const auto gradients = torch::autograd::grad({(first * weights).sum()}, inputs, {}, false, false,
                                               /*allow_unused=*/true);
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& [name, leaf] = leaves[i];
    ASSERT_TRUE(gradients[i].defined()) << name << " has no gradient";
    Tensor values = leaf;
    const Tensor at = leaf.clone(), direction = torch::randn_like(leaf);
    values.copy_(at + kStep * direction);
    const double above = (compute() * weights).sum().item<double>();
    values.copy_(at - kStep * direction);
    const double below = (compute() * weights).sum().item<double>();
    values.copy_(at);
    const double numeric = (above - below) / (2.0 * kStep);
    const double analytic = (gradients[i] * direction).sum().item<double>();
    const double scale = std::max(1.0, gradients[i].norm().item<double>());
    EXPECT_NEAR(analytic, numeric, tolerance * scale) << name;
  }
}

inline std::vector<std::pair<std::string, Tensor>> parameters_of(torch::nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  return result;
}

/// Converts parameters to float64 and adds noise, so that none has a special value such as 0 or 1.
template <class Holder>
Holder randomised(Holder layer) {
  layer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : layer->parameters()) parameter.add_(0.05 * torch::randn_like(parameter));
  return layer;
}

using Forward = std::function<Tensor(const AttentionInput&)>;

inline Forward forward_of(AttentionLayer& layer) {
  return [&layer](const AttentionInput& input) { return layer.forward(input); };
}

inline AttentionInput input_of(const Tensor& x, const AttentionMask& mask = {}) {
  AttentionInput input;
  input.x = x;
  input.mask = mask;
  return input;
}

/// A change of token t leaves earlier outputs bitwise equal and changes output t.
inline void expect_causal(const Forward& forward, const Tensor& x) {
  const torch::NoGradGuard no_grad;
  const Tensor before = forward(input_of(x));
  for (const int64_t t : {x.size(1) / 2, x.size(1) - 1}) {
    const Tensor changed = x.clone();
    changed.select(1, t).normal_();
    const Tensor after = forward(input_of(changed));
    EXPECT_TRUE(after.narrow(1, 0, t).equal(before.narrow(1, 0, t))) << "token " << t;
    EXPECT_FALSE(after.narrow(1, t, 1).equal(before.narrow(1, t, 1))) << "token " << t;
  }
}

/// Runs steps of several sizes with a cache, rewinds one of them, and compares with one full run.
inline void expect_cached_equals_full(const Forward& forward, const Tensor& x,
                                      const AttentionMask& mask = {}) {
  const torch::NoGradGuard no_grad;
  const Tensor full = forward(input_of(x, mask));
  nn::KvCache cache(4);
  const auto step = [&](int64_t begin, int64_t count) {
    AttentionInput input = input_of(x.narrow(1, begin, count), mask);
    input.cache = &cache;
    return forward(input);
  };
  std::vector<Tensor> steps{step(0, 3), step(3, 1)};
  const Tensor other = torch::randn_like(x.narrow(1, 0, 2));
  AttentionInput rewound = input_of(other, mask);
  rewound.cache = &cache;
  forward(rewound);
  cache.rewind(4);
  steps.push_back(step(4, 2));
  for (int64_t t = 6; t < x.size(1); ++t) steps.push_back(step(t, 1));
  EXPECT_EQ(cache.length(), x.size(1));
  expect_close(torch::cat(steps, 1), full, "cached steps");
}

/// Compares left-padded, right-padded and packed sequences with each sequence alone. x is
/// [lengths.size(), longest, E].
inline void expect_padding_and_packing(const Forward& forward, const Tensor& x,
                                       const std::vector<int64_t>& lengths, bool packing = true) {
  const torch::NoGradGuard no_grad;
  const auto batch = static_cast<int64_t>(lengths.size());
  const int64_t longest = x.size(1);
  const Tensor real = torch::tensor(lengths);
  const Tensor left_x = torch::randn_like(x), right_x = torch::randn_like(x);
  std::vector<Tensor> alone, rows;
  std::vector<int64_t> offsets{0};
  for (int64_t b = 0; b < batch; ++b) {
    const Tensor one = x[b].narrow(0, 0, lengths[b]);
    left_x[b].narrow(0, longest - lengths[b], lengths[b]).copy_(one);
    right_x[b].narrow(0, 0, lengths[b]).copy_(one);
    alone.push_back(forward(input_of(one.unsqueeze(0))).squeeze(0));
    rows.push_back(one);
    offsets.push_back(offsets.back() + lengths[b]);
  }
  const Tensor left = forward(input_of(left_x, AttentionMask().key_starts(longest - real)));
  const Tensor right = forward(input_of(right_x, AttentionMask().key_lengths(real)));
  EXPECT_TRUE(torch::isfinite(left).all().item<bool>()) << "padding rows";
  EXPECT_TRUE(torch::isfinite(right).all().item<bool>()) << "padding rows";
  for (int64_t b = 0; b < batch; ++b) {
    const std::string which = " padding, sequence " + std::to_string(b);
    expect_close(left[b].narrow(0, longest - lengths[b], lengths[b]), alone[b], "left" + which);
    expect_close(right[b].narrow(0, 0, lengths[b]), alone[b], "right" + which);
  }
  if (!packing) return;
  const Tensor packed =
      forward(input_of(torch::cat(rows), AttentionMask().cu_seqlens_q(torch::tensor(offsets))));
  expect_close(packed, torch::cat(alone), "packed");
}

}  // namespace diffattn::testing
