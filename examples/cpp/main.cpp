// SPDX-License-Identifier: Apache-2.0
//
// Calls differential attention as one operator, then trains a small model that uses it.

#include <cstdio>

#include "diffattn/nn/decoder.h"
#include "diffattn/ops.h"
#include "diffattn/train/trainer.h"

namespace {

using torch::Tensor;

/// Computes (softmax(q1 k1^T) - lambda softmax(q2 k2^T)) v and returns the gradient of lambda.
double attend() {
  const auto random = [](int64_t heads, int64_t width) {
    return torch::randn({1, 128, heads, width}).requires_grad_();
  };
  const Tensor q1 = random(4, 32), q2 = random(4, 32);  // [B, M, H, D]
  const Tensor k1 = random(2, 32), k2 = random(2, 32);  // [B, N, Hkv, D]
  const Tensor v = random(2, 64);                       // [B, N, Hkv, 2D]
  const Tensor lambda = torch::full({}, 0.5).requires_grad_();
  const Tensor out =
      diffattn::attention(q1, q2, k1, k2, v, lambda, diffattn::AttentionOptions().causal(true));
  out.square().mean().backward();
  return lambda.grad().item<double>();
}

/// Random tokens. The label of each position is the token three positions before it.
class Echo : public diffattn::train::BatchSource {
 public:
  diffattn::train::Batch next() override {
    diffattn::train::Batch batch;
    batch.ids = torch::randint(kTokens, {8, 32}, torch::kInt64);
    batch.labels = torch::constant_pad_nd(batch.ids.slice(1, 0, 32 - kBack), {kBack, 0}, -100);
    return batch;
  }
  std::string position() const override { return "{}"; }  // batches are random: nothing to resume
  void seek(const std::string&) override {}

  static constexpr int64_t kTokens = 16, kBack = 3;
};

double mean_loss(diffattn::train::Trainer& trainer, Echo& data, int steps) {
  double sum = 0.0;
  for (int i = 0; i < steps; ++i) sum += trainer.step(data).loss;
  return sum / steps;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  std::printf("attention: gradient of lambda %.4f\n", attend());

  diffattn::nn::ModelConfig model;  // a DiffLlama
  model.vocab_size = Echo::kTokens;
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 4;  // sub-heads: two differential heads
  model.num_key_value_heads = 4;
  model.head_dim = 16;
  diffattn::train::RunConfig run;
  run.train.steps = 150;
  run.train.learning_rate = 3e-3;
  run.train.seq_len = 32;
  run.train.peak_tflops = 1.0;  // given, so that the trainer does not measure it
  run.resolve();
  diffattn::train::Trainer trainer(diffattn::nn::CausalLM(model), run);
  Echo data;
  const double first = mean_loss(trainer, data, 10);
  mean_loss(trainer, data, 130);
  const double last = mean_loss(trainer, data, 10);
  std::printf("training: loss %.3f at first, %.3f after 150 steps\n", first, last);
  return last < 0.5 * first ? 0 : 1;
}
