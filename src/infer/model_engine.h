// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <array>
#include <map>
#include <vector>

#include "infer/engine.h"

namespace diffattn::infer {

/// Computes each row by itself with the modules, on any device and for every model.
class ModelEngine : public Engine {
 public:
  ModelEngine(nn::CausalLM model, const GeneratorOptions& options);

  bool has_room(const std::vector<int64_t>& tokens) override;
  bool can_hold(int64_t tokens) const override;
  void join(const std::vector<JoiningRow>& rows) override;
  std::vector<int64_t> prefill(int64_t budget) override;
  void leave(int64_t slot) override;
  void launch(int64_t slots, int64_t longest) override;
  void read() override {}
  token::Chosen chosen(int64_t slot, int64_t step) const override;
  std::vector<Alternative> likeliest(int64_t slot, int64_t count) const override;
  int64_t depth() const override { return 1; }
  Batcher::Load load() const override;

 private:
  struct Row {
    nn::KvCaches caches;
    std::vector<int64_t> next;  // tokens to compute
    int64_t most_tokens = 0;
    token::SamplingRule rule = {};
    std::vector<uint16_t> counts;
    int32_t step = 0;
    std::array<token::Chosen, token::Sampling::kRing> chosen = {};
    torch::Tensor logits = {};  // of the newest step, on the CPU
    bool ready = false;         // the first step computes the tokens that are left of its prompt
  };
  torch::Tensor forward(Row& row, const std::vector<int64_t>& tokens);
  void compute(Row& row);
  int64_t used_tokens() const;

  nn::CausalLM model_;
  GeneratorOptions options_;
  std::map<int64_t, Row> rows_;
  std::vector<int64_t> joining_;  // slots whose rows are not ready, the oldest first
};

}  // namespace diffattn::infer
