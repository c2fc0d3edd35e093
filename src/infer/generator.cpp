// SPDX-License-Identifier: Apache-2.0
#include "diffattn/infer/generator.h"

#include "nn/models/prompts.h"

namespace diffattn::infer {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

/// Gives every row its own sequence of random numbers.
uint64_t seed_of(uint64_t seed, size_t row) { return seed + row * 0xD1B54A32D192ED03ull; }

/// The requests of one call. Those that are left when it ends are cancelled.
struct Call {
  Batcher& batcher;
  uint64_t first = 0;  // number of the first request
  size_t count = 0;

  ~Call() {
    for (size_t row = 0; row < count; ++row) batcher.cancel(first + row);
  }
};

}  // namespace

Generator::Generator(nn::CausalLM model, const GeneratorOptions& options)
    : model_(std::move(model)), batcher_(model_, options) {}

Rows Generator::generate(const Rows& prompts, const nn::SamplingOptions& options,
                         const nn::OnToken& on_token) {
  if (!uses_steps()) return nn::generate(*model_, prompts, options, on_token);
  nn::check_generation(*model_, prompts, options);
  Rows results(prompts.size());
  if (options.max_new_tokens() == 0) return results;
  Call call{batcher_};
  for (size_t row = 0; row < prompts.size(); ++row) {
    const uint64_t number = batcher_.submit(
        {prompts[row], nn::SamplingOptions(options).seed(seed_of(options.seed(), row))});
    if (row == 0) call.first = number;
    ++call.count;
  }
  while (!batcher_.idle()) {
    for (const NewToken& token : batcher_.step()) {
      const auto row = static_cast<size_t>(token.request - call.first);
      if (token.finish == Finish::kNotFinite) {
        throw Error(c10::str("diffattn: generate: prompt ", row, ": expected finite logits after ",
                             results[row].size(), " new tokens, got NaN or infinity; the model's ",
                             "weights overflow"));
      }
      results[row].push_back(token.token);
      if (on_token && !on_token(row, token.token)) batcher_.cancel(token.request);
    }
  }
  return results;
}

}  // namespace diffattn::infer
