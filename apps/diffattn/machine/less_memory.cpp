// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/machine/less_memory.h"

#include <array>
#include <string_view>
#include <utility>

namespace diffattn::app {
namespace {

using Advice = std::pair<std::string_view, std::string_view>;

constexpr std::array<Advice, 11> kAdvice{{
    {"train",
     "lower train.batch_size and raise train.accumulate, or set train.activation_checkpointing = "
     "true (train.keep_attention = \"nothing\" saves the most)"},
    {"compare", "lower --jobs, train.batch_size or train.seq_len"},
    {"eval", "lower --batch-size or --seq-len"},
    {"generate", "lower --max-new-tokens, give fewer prompts at a time, or use --dtype bfloat16"},
    {"serve", "lower --cache-tokens or --max-rows, or use --dtype bfloat16"},
    {"classify", "lower --batch-size"},
    {"summarize", "lower --batch-size or --beams"},
    {"analyze", "give a shorter text, lower --seq-len or --examples, or use --dtype bfloat16"},
    {"bench", "lower the sequence length (--seq or --prompt), --batch or --layers"},
    {"convert", "use a machine that holds the largest tensor of the model twice"},
    {"tokenize", "give less text, or lower --vocab-size"},
}};

}  // namespace

std::string less_memory(const std::string& verb) {
  for (const auto& [name, advice] : kAdvice) {
    if (name == verb) return "To use less memory, " + std::string(advice) + ".";
  }
  return "Use a machine with more memory, or end other programs.";
}

}  // namespace diffattn::app
