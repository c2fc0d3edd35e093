// SPDX-License-Identifier: Apache-2.0
#include "nn/models/prompts.h"

#include <algorithm>
#include <cmath>

namespace diffattn::nn {

using Rows = std::vector<std::vector<int64_t>>;

void check_generation(const CausalLMImpl& model, const Rows& prompts,
                      const SamplingOptions& options) {
  if (prompts.empty()) throw_argument_error("prompts", "at least one", "none");
  for (size_t row = 0; row < prompts.size(); ++row) {
    const std::string name = c10::str("prompts[", row, "]");
    if (prompts[row].empty()) throw_argument_error(name, "at least one token", "none");
    for (const int64_t id : prompts[row]) {
      if (id >= 0 && id < model.config.vocab_size) continue;
      throw_argument_error(
          name, c10::str("token ids in [0, ", model.config.vocab_size - 1, "], the vocabulary"),
          std::to_string(id));
    }
  }
  const auto require = [](bool fits, const char* option, const char* expected, auto value) {
    if (!fits) throw_argument_error(option, expected, c10::str(value));
  };
  require(options.max_new_tokens() >= 0, "max_new_tokens", "at least 0", options.max_new_tokens());
  require(options.temperature() >= 0.0, "temperature", "at least 0", options.temperature());
  require(options.top_k() >= 0, "top_k", "at least 0", options.top_k());
  require(options.top_p() > 0.0 && options.top_p() <= 1.0, "top_p", "a number in (0, 1]",
          options.top_p());
  require(options.repetition_penalty() > 0.0, "repetition_penalty", "a positive number",
          options.repetition_penalty());
  require(std::isfinite(options.presence_penalty()), "presence_penalty", "a finite number",
          options.presence_penalty());
  require(std::isfinite(options.frequency_penalty()), "frequency_penalty", "a finite number",
          options.frequency_penalty());
}

PaddedPrompts pad_left(const Rows& prompts, torch::Device device) {
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const auto rows = static_cast<int64_t>(prompts.size()), width = static_cast<int64_t>(longest);
  PaddedPrompts padded{
      torch::zeros({rows, width}, torch::kLong), torch::empty({rows}, torch::kLong), {}};
  for (int64_t row = 0; row < rows; ++row) {
    const auto& prompt = prompts[static_cast<size_t>(row)];
    const int64_t start = width - static_cast<int64_t>(prompt.size());
    padded.ids[row].slice(0, start).copy_(torch::tensor(prompt, torch::kLong));
    padded.starts[row] = start;
  }
  padded.positions =
      (torch::arange(width).unsqueeze(0) - padded.starts.unsqueeze(1)).clamp_min(0).to(device);
  padded.ids = padded.ids.to(device);
  padded.starts = padded.starts.to(device);
  return padded;
}

}  // namespace diffattn::nn
