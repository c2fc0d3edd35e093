// SPDX-License-Identifier: Apache-2.0
#include "infer/model_engine.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "infer/likeliest.h"
#include "ops/layers/token_step.h"

namespace diffattn::infer {

ModelEngine::ModelEngine(nn::CausalLM model, const GeneratorOptions& options)
    : model_(std::move(model)), options_(options) {}

int64_t ModelEngine::used_tokens() const {
  int64_t tokens = 0;
  for (const auto& [slot, row] : rows_) tokens += row.most_tokens;
  return tokens;
}

bool ModelEngine::has_room(const std::vector<int64_t>& tokens) {
  return options_.cache_tokens() == 0 ||
         std::accumulate(tokens.begin(), tokens.end(), used_tokens()) <= options_.cache_tokens();
}

bool ModelEngine::can_hold(int64_t tokens) const {
  return options_.cache_tokens() == 0 || tokens <= options_.cache_tokens();
}

void ModelEngine::join(const std::vector<JoiningRow>& rows) {
  for (const JoiningRow& joining : rows) {
    Row row;
    row.caches = nn::KvCaches(model_->model->layers.size());
    row.next = joining.prompt;
    row.most_tokens = joining.most_tokens;
    row.rule = joining.rule;
    row.counts.resize(static_cast<size_t>(model_->config.vocab_size));
    for (const int64_t id : joining.prompt) {
      row.counts[static_cast<size_t>(id)] = token::Sampling::kInPrompt;
    }
    rows_[joining.slot] = std::move(row);
    joining_.push_back(joining.slot);
  }
}

void ModelEngine::launch(int64_t slots, int64_t) {
  const c10::InferenceMode inference;
  for (auto& [slot, row] : rows_) {
    if (slot < slots && row.ready) compute(row);
  }
}

/// Computes the parts of prompts that do not fit into the first step's share of the budget.
std::vector<int64_t> ModelEngine::prefill(int64_t budget) {
  const c10::InferenceMode inference;
  std::vector<int64_t> ready;
  int64_t left = budget == 0 ? std::numeric_limits<int64_t>::max() : budget;
  for (const int64_t slot : joining_) {
    Row& row = rows_[slot];
    const auto rest = static_cast<int64_t>(row.next.size());
    if (rest <= left) {
      row.ready = true;
      ready.push_back(slot);
      left -= rest;
    } else if (rest > budget && left > 0) {
      const auto end = row.next.begin() + left;
      forward(row, {row.next.begin(), end});
      row.next.erase(row.next.begin(), end);
      left = 0;
    }
  }
  std::erase_if(joining_, [&](int64_t slot) { return rows_[slot].ready; });
  return ready;
}

void ModelEngine::leave(int64_t slot) {
  rows_.erase(slot);
  std::erase(joining_, slot);
}

/// Returns the last hidden state of the last token.
torch::Tensor ModelEngine::forward(Row& row, const std::vector<int64_t>& tokens) {
  nn::DecoderInput input;
  input.ids = torch::tensor(tokens, torch::kLong).unsqueeze(0).to(model_->head_weight().device());
  input.caches = &row.caches;
  input.last_only = true;
  return model_->forward(input).last;
}

std::vector<Alternative> ModelEngine::likeliest(int64_t slot, int64_t count) const {
  const c10::InferenceMode inference;
  return likeliest_tokens(rows_.at(slot).logits, count);
}

void ModelEngine::compute(Row& row) {
  const torch::Tensor logits = model_->logits(forward(row, row.next).select(1, -1))
                                   .to(torch::kCPU, torch::kFloat32)
                                   .contiguous();
  row.logits = logits.flatten();
  int32_t id = 0, position = 0, length = 0;
  const token::Batch batch{.dtype = Dtype::kFloat32,
                           .rows = 1,
                           .tokens = &id,
                           .positions = &position,
                           .lengths = &length};
  const int32_t step = row.step;
  ops::cpu_token_step()->sample(batch,
                                {.logits = logits.const_data_ptr<float>(),
                                 .vocabulary = static_cast<int>(logits.numel()),
                                 .rules = &row.rule,
                                 .counts = row.counts.data(),
                                 .steps = &row.step,
                                 .chosen = row.chosen.data()},
                                nullptr);
  const token::Chosen chosen = row.chosen[static_cast<size_t>(step % token::Sampling::kRing)];
  row.next = {std::max(0, chosen.token)};
}

token::Chosen ModelEngine::chosen(int64_t slot, int64_t step) const {
  return rows_.at(slot).chosen[static_cast<size_t>(step % token::Sampling::kRing)];
}

Batcher::Load ModelEngine::load() const {
  Batcher::Load load;
  load.used_pages = used_tokens() / options_.page_size();
  load.pages = options_.cache_tokens() / options_.page_size();
  return load;
}

}  // namespace diffattn::infer
