// SPDX-License-Identifier: Apache-2.0
#include "infer/prompt_score.h"

#include <algorithm>
#include <utility>

#include "nn/models/prompts.h"

namespace diffattn::infer {

PromptScore::PromptScore(nn::CausalLM model, std::vector<int64_t> prompt, int64_t alternatives)
    : model_(std::move(model)),
      prompt_(std::move(prompt)),
      alternatives_(alternatives),
      caches_(model_->model->layers.size()) {
  nn::check_generation(*model_, {prompt_}, {});
  scores_.push_back({.token = prompt_.front()});
}

bool PromptScore::advance(int64_t tokens) {
  // The last token needs no computation: nothing comes after it.
  const int64_t all = static_cast<int64_t>(prompt_.size()) - 1;
  const int64_t end = std::min(all, computed_ + std::max<int64_t>(1, tokens));
  if (end > computed_) {
    const c10::InferenceMode inference;
    nn::DecoderInput input;
    const std::vector<int64_t> part(prompt_.begin() + computed_, prompt_.begin() + end);
    input.ids = torch::tensor(part, torch::kLong).unsqueeze(0).to(model_->head_weight().device());
    input.caches = &caches_;
    const auto log_p =
        model_->logits(model_->forward(input).last[0]).to(torch::kFloat32).log_softmax(-1);
    const std::vector<int64_t> next(prompt_.begin() + computed_ + 1, prompt_.begin() + end + 1);
    const auto ids = torch::tensor(next, torch::kLong).to(log_p.device());
    const auto chosen = log_p.gather(1, ids.unsqueeze(1)).squeeze(1).cpu();
    const auto [values, tokens_by_rank] =
        log_p.topk(std::min(alternatives_, log_p.size(-1)), /*dim=*/-1);
    const auto p = values.cpu(), best = tokens_by_rank.cpu();
    const int64_t count = p.size(1);
    for (int64_t i = 0; i < end - computed_; ++i) {
      ScoredToken& score = scores_.emplace_back();
      score.token = next[static_cast<size_t>(i)];
      score.log_probability = chosen.const_data_ptr<float>()[i];
      for (int64_t k = i * count; k < (i + 1) * count; ++k) {
        score.alternatives.push_back(
            {best.const_data_ptr<int64_t>()[k], p.const_data_ptr<float>()[k]});
      }
    }
    computed_ = end;
  }
  return computed_ < all;
}

}  // namespace diffattn::infer
