// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/evaluate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "diffattn/nn/cross_entropy.h"
#include "train/mixed_precision.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

constexpr std::array<std::pair<Stat, const char*>, 8> kLogged{{
    {kStatSparse, "sparsity"},
    {kStatFocus, "focus"},
    {kStatAbsSum, "abs_sum"},
    {kStatNegativeMass, "negative_mass"},
    {kStatMax, "row_max"},
    {kStatEntropy, "entropy"},
    {kStatSinkMass, "sink_mass"},
    {kStatCancelled, "noise_cancelled"},
}};

torch::Device device_of(const nn::CausalLMImpl& model) { return model.head_weight().device(); }

}  // namespace

Evaluation& Evaluation::operator+=(const Evaluation& other) {
  loss_sum += other.loss_sum;
  right += other.right;
  tokens += other.tokens;
  seconds += other.seconds;
  return *this;
}

double Evaluation::loss() const {
  return loss_sum / static_cast<double>(std::max<int64_t>(1, tokens));
}
double Evaluation::perplexity() const { return std::exp(loss()); }
double Evaluation::accuracy() const {
  return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(1, tokens));
}

Evaluation evaluate(nn::CausalLMImpl& model, const Batch& given, const std::string& dtype) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(device_of(model));
  const MixedPrecision region(device_of(model), dtype);
  const Tensor hidden = model.forward(batch.model_input()).last;
  const nn::TokenLoss loss = nn::linear_cross_entropy(hidden, model.head_weight(), batch.labels);
  Evaluation result;
  result.tokens = loss.count.item<int64_t>();
  result.loss_sum = loss.mean.item<double>() * static_cast<double>(result.tokens);
  result.right = nn::count_correct(hidden, model.head_weight(), batch.labels);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

Values attention_statistics(nn::CausalLMImpl& model, const Batch& given, const std::string& dtype) {
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(device_of(model));
  std::vector<nn::AttentionTrace> traces;
  nn::DecoderInput input = batch.model_input();
  input.traces = &traces;
  {
    const MixedPrecision region(device_of(model), dtype);
    model.forward(input);
  }
  Values values;
  for (size_t layer = 0; layer < traces.size(); ++layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    for (const nn::HeadTensors& heads : traces[layer].calls) {
      const Tensor stats =
          attention_stats(heads.q1, heads.q2, heads.k1, heads.k2, heads.lambda, heads.options)
              .flatten(0, -2)
              .mean(0)
              .to(torch::kCPU);
      values.emplace_back(prefix + "lambda", heads.lambda.mean().item<double>());
      for (const auto& [stat, name] : kLogged) {
        values.emplace_back(prefix + name, stats[stat].item<double>());
      }
    }
  }
  return values;
}

}  // namespace diffattn::train
