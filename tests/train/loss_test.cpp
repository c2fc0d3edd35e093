// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "diffattn/nn/cross_entropy.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "nn/models/attention_penalty.h"
#include "ops/layers/loss.h"

namespace diffattn::nn::loss_test {
namespace {

using torch::Tensor;

struct Example {
  Tensor hidden, weight, labels;
};

Example example(int64_t rows, int64_t width, int64_t vocabulary, torch::ScalarType type) {
  torch::manual_seed(5);
  Example e{torch::randn({2, rows, width}, type), torch::randn({vocabulary, width}, type),
            torch::randint(vocabulary, {2, rows}, torch::kLong)};
  e.labels.index_put_({0, 1}, -100);
  e.labels.index_put_({1, rows - 1}, -100);
  e.hidden.requires_grad_(true);
  e.weight.requires_grad_(true);
  return e;
}

/// Computes the loss with torch from all logits.
Tensor whole_logits_loss(const Example& e, const CrossEntropyOptions& options) {
  const Tensor logits = torch::matmul(e.hidden, e.weight.t()).flatten(0, 1);
  const Tensor labels = e.labels.flatten();
  namespace F = torch::nn::functional;
  const Tensor loss = F::cross_entropy(logits, labels,
                                       F::CrossEntropyFuncOptions()
                                           .ignore_index(options.ignore_index())
                                           .label_smoothing(options.label_smoothing()));
  const Tensor counted = labels.ne(options.ignore_index());
  const Tensor square = torch::logsumexp(logits, 1).square();
  return loss + options.z_loss() * torch::where(counted, square, 0.0).sum() / counted.sum();
}

void expect_whole_logits_loss(torch::ScalarType type, double tolerance) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const double z_loss : {0.0, 0.01}) {
      for (const int64_t chunk_rows : {1, 3, 100}) {
        const Example e = example(7, 5, 11, type);
        const auto options =
            CrossEntropyOptions().label_smoothing(smoothing).z_loss(z_loss).chunk_bytes(chunk_rows *
                                                                                        11 * 4);
        const Tensor expected = whole_logits_loss(e, options);
        const auto expected_grads = torch::autograd::grad({expected}, {e.hidden, e.weight});
        const TokenLoss loss = linear_cross_entropy(e.hidden, e.weight, e.labels, options);
        const auto grads = torch::autograd::grad({3.0 * loss.mean}, {e.hidden, e.weight});
        EXPECT_EQ(loss.count.item<int64_t>(), 12);
        EXPECT_LT((loss.mean - expected).abs().item<double>(), tolerance);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_LT((grads[i] - 3.0 * expected_grads[i]).abs().max().item<double>(), tolerance)
              << "gradient " << i << " smoothing " << smoothing << " z " << z_loss;
        }
      }
    }
  }
}

TEST(CrossEntropy, EqualsWholeLogitsForEveryOptionAndChunk) {
  expect_whole_logits_loss(torch::kFloat64, 1e-12);
  expect_whole_logits_loss(torch::kFloat32, 3e-6);
}

TEST(CrossEntropy, RefusesLabelsBeyondTheVocabulary) {
  Example e = example(3, 4, 6, torch::kFloat32);
  e.labels.flatten()[1] = 6;
  EXPECT_THROW(linear_cross_entropy(e.hidden, e.weight, e.labels), diffattn::Error);
}

TEST(CrossEntropy, RefusesLabelsOfAnotherDevice) {
  Tensor logits = torch::zeros({3, 6});
  const Tensor labels = torch::zeros({3}, torch::dtype(torch::kLong).device(torch::kMeta));
  try {
    cross_entropy_to_gradient_(logits, labels, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const diffattn::Error& error) {
    EXPECT_NE(std::string(error.what()).find("on meta"), std::string::npos);
  }
}

TEST(CrossEntropy, RefusesSecondDerivativesInsteadOfForgettingThem) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    const Example e = example(3, 4, 6, type);
    const Tensor loss = linear_cross_entropy(e.hidden, e.weight, e.labels).mean;
    EXPECT_THROW(torch::autograd::grad({loss}, {e.hidden}, {}, true, /*create_graph=*/true),
                 diffattn::Error);
  }
}

TEST(CrossEntropy, GradientsBelongToTheirLeaves) {
  const Example e = example(3, 4, 6, torch::kFloat32);
  const Tensor loss = linear_cross_entropy(e.hidden, e.weight, e.labels).mean;
  const auto want = torch::autograd::grad({2.0 * loss}, {e.hidden, e.weight}, {}, true);
  for (int time = 0; time < 2; ++time) {
    loss.backward({}, /*retain_graph=*/true);
    for (size_t i = 0; i < 2; ++i) {
      Tensor grad = (i == 0 ? e.hidden : e.weight).mutable_grad();
      EXPECT_TRUE(torch::equal(2.0 * grad, want[i])) << i << ", time " << time;
      grad.zero_();  // must not change the tensors of the graph
    }
  }
}

TEST(CrossEntropy, WithoutGradientsGivesTheSameNumber) {
  const Example e = example(9, 4, 6, torch::kFloat32);
  const double with = linear_cross_entropy(e.hidden, e.weight, e.labels).mean.item<double>();
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(linear_cross_entropy(e.hidden, e.weight, e.labels).mean.item<double>(), with);
}

TEST(CrossEntropy, AllLabelsIgnoredGiveZeroAndZeroGradients) {
  Example e = example(3, 4, 6, torch::kFloat32);
  e.labels.fill_(-100);
  const TokenLoss loss = linear_cross_entropy(e.hidden, e.weight, e.labels);
  loss.mean.backward();
  EXPECT_EQ(loss.mean.item<double>(), 0.0);
  EXPECT_EQ(loss.count.item<int64_t>(), 0);
  EXPECT_EQ(e.hidden.grad().abs().max().item<double>(), 0.0);
}

TEST(CrossEntropy, CountsRightAnswers) {
  const Example e = example(50, 8, 5, torch::kFloat32);
  const Tensor best = torch::matmul(e.hidden, e.weight.t()).argmax(-1);
  EXPECT_EQ(count_correct(e.hidden, e.weight, best), 100);
  EXPECT_EQ(count_correct(e.hidden, e.weight, e.labels), best.eq(e.labels).sum().item<int64_t>());
}

TEST(CrossEntropy, NamesWhatIsWrong) {
  const Example e = example(3, 4, 6, torch::kFloat32);
  const auto message = [&](const Tensor& weight, const Tensor& labels, double smoothing) {
    try {
      linear_cross_entropy(e.hidden, weight, labels,
                           CrossEntropyOptions().label_smoothing(smoothing));
    } catch (const diffattn::Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_NE(message(torch::zeros({6, 3}), e.labels, 0).find("'weight': expected shape [V, 4]"),
            std::string::npos);
  EXPECT_NE(message(e.weight, torch::zeros({2, 4}, torch::kLong), 0).find("labels"),
            std::string::npos);
  EXPECT_NE(message(e.weight, e.labels, 1.0).find("label_smoothing"), std::string::npos);
}

TEST(AttentionPenalty, EqualsItsDefinitionOnTheMap) {
  torch::manual_seed(3);
  MultiheadDiffAttention layer(MultiheadDiffAttentionOptions(16, 2).layer_index(1));
  AttentionTrace trace;
  layer->forward(AttentionInput{.x = torch::randn({2, 9, 16})}, &trace);
  ASSERT_EQ(trace.calls.size(), 1u);
  const HeadTensors& heads = trace.calls[0];
  const Tensor map =
      attention_map(heads.q1, heads.q2, heads.k1, heads.k2, heads.lambda, heads.options)
          .select(2, 2);  // [B, H, M, N]
  const Tensor l1 = map.abs().sum(-1);
  const double sparsity = (l1 / (1.0 + heads.lambda.abs())).mean().item<double>();
  const double focus = 1.0 - (map.square().sum(-1) / l1.square()).mean().item<double>();
  const AttentionPenalty penalty = attention_penalty({trace});
  EXPECT_NEAR(penalty.sparsity.item<double>(), sparsity, 1e-5);
  EXPECT_NEAR(penalty.focus.item<double>(), focus, 1e-5);
  (penalty.sparsity + penalty.focus).backward();
  for (const auto& parameter : layer->named_parameters()) {
    const bool used = parameter.key().starts_with("q_") || parameter.key().starts_with("k_") ||
                      parameter.key().starts_with("lambda");
    EXPECT_EQ(used, parameter.value().grad().defined()) << parameter.key();
  }
}

}  // namespace
}  // namespace diffattn::nn::loss_test
