// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/generate.h"

#include <algorithm>
#include <limits>

#include "nn/models/prompts.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;
using Rows = std::vector<std::vector<int64_t>>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kNotFinite = -1;  // in place of a token

/// The tokens of each row that penalties look at; undefined if no penalty does.
struct Occurrences {
  Tensor seen;       // [B, V] bool: in prompt or continuation
  Tensor generated;  // [B, V] float32: how many times

  /// Adds one new token per row, [B, 1].
  void add(const Tensor& ids) {
    if (seen.defined()) seen.scatter_(1, ids, true);
    if (generated.defined()) {
      generated.scatter_add_(1, ids, torch::ones_like(ids, generated.options()));
    }
  }
};

/// Returns logits [B, V] with lower values for the tokens that have occurred.
Tensor penalize(Tensor logits, const Occurrences& occurred, const SamplingOptions& options) {
  if (occurred.seen.defined()) {
    const double factor = options.repetition_penalty();
    logits = torch::where(occurred.seen, torch::where(logits > 0, logits / factor, logits * factor),
                          logits);
  }
  if (occurred.generated.defined()) {
    logits = logits - options.presence_penalty() * (occurred.generated > 0) -
             options.frequency_penalty() * occurred.generated;
  }
  return logits;
}

/// Sets all logits to -inf except those of the fewest likeliest tokens whose total probability
/// reaches top_p.
Tensor keep_top_p(const Tensor& logits, double top_p) {
  const auto [sorted, order] = logits.sort(-1, /*descending=*/true);
  const Tensor before = sorted.softmax(-1).cumsum(-1) - sorted.softmax(-1);
  const Tensor kept = sorted.masked_fill(before >= top_p, kMinusInfinity);
  return torch::empty_like(logits).scatter_(-1, order, kept);
}

class Sampler {
 public:
  Sampler(const SamplingOptions& options, torch::Device device)
      : options_(options), generator_(at::globalContext().defaultGenerator(device).clone()) {
    generator_.set_current_seed(options.seed());
  }

  /// logits [B, V] -> [B]; kNotFinite for rows with a NaN or an infinite logit.
  Tensor next(Tensor logits, const Occurrences& occurred) {
    logits = logits.to(torch::kFloat32);
    const Tensor broken = logits.amax(-1).isfinite().logical_not();  // amax propagates NaN
    return chosen(penalize(logits.masked_fill(broken.unsqueeze(-1), 0.0), occurred, options_))
        .masked_fill_(broken, kNotFinite);
  }

 private:
  Tensor chosen(Tensor logits) {
    if (options_.temperature() == 0.0) return logits.argmax(-1);
    logits = logits / options_.temperature();
    if (options_.top_k() > 0 && options_.top_k() < logits.size(-1)) {
      const Tensor least = std::get<0>(logits.topk(options_.top_k())).slice(-1, -1);
      logits = logits.masked_fill(logits < least, kMinusInfinity);
    }
    if (options_.top_p() < 1.0) logits = keep_top_p(logits, options_.top_p());
    return logits.softmax(-1).multinomial(1, /*replacement=*/false, generator_).squeeze(-1);
  }

  SamplingOptions options_;
  at::Generator generator_;
};

/// Returns the tokens that occur in each prompt, [B, V]; undefined if the penalty is off.
Tensor seen_in(const PaddedPrompts& padded, int64_t vocabulary, double penalty) {
  if (penalty == 1.0) return {};
  Tensor seen =
      torch::zeros({padded.ids.size(0), vocabulary}, padded.ids.options().dtype(torch::kBool));
  const Tensor columns = torch::arange(padded.ids.size(1), padded.ids.options());
  // A padding position marks the first real token of its row, which occurs anyway.
  const Tensor first = padded.ids.gather(1, padded.starts.unsqueeze(1));
  const Tensor real = columns.unsqueeze(0) >= padded.starts.unsqueeze(1);
  seen.scatter_(1, torch::where(real, padded.ids, first), true);
  return seen;
}

/// Appends the tokens of one step to their rows, and marks the rows that end.
void collect(const Tensor& next, const SamplingOptions& options, const OnToken& on_token,
             Rows& rows, std::vector<bool>& alive) {
  const Tensor host = next.to(torch::kCPU);
  const auto& stops = options.stop_tokens();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!alive[row]) continue;
    const int64_t token = host[static_cast<int64_t>(row)].item<int64_t>();
    if (token == kNotFinite) {
      throw Error(c10::str("diffattn: generate: prompt ", row, ": expected finite logits after ",
                           rows[row].size(), " new tokens, got NaN or infinity; the model's ",
                           "weights overflow"));
    }
    rows[row].push_back(token);
    if (on_token && !on_token(row, token)) alive[row] = false;
    if (std::ranges::find(stops, token) != stops.end()) alive[row] = false;
  }
}

}  // namespace

Rows generate(CausalLMImpl& model, const Rows& prompts, const SamplingOptions& options,
              const OnToken& on_token) {
  check_generation(model, prompts, options);
  const c10::InferenceMode inference;
  const torch::Device device = model.head_weight().device();
  const PaddedPrompts padded = pad_left(prompts, device);
  Occurrences occurred{seen_in(padded, model.config.vocab_size, options.repetition_penalty()), {}};
  if (options.presence_penalty() != 0.0 || options.frequency_penalty() != 0.0) {
    occurred.generated =
        torch::zeros({padded.ids.size(0), model.config.vocab_size}, torch::device(device));
  }
  Sampler sampler(options, device);
  KvCaches caches(model.model->layers.size());
  DecoderInput input;
  input.ids = padded.ids;
  input.caches = &caches;
  input.last_only = true;
  if (prompts.size() > 1) {  // a single prompt has no padding: the cache gives its positions
    input.positions = padded.positions;
    input.mask.key_starts(padded.starts);
  }
  Rows rows(prompts.size());
  std::vector<bool> alive(prompts.size(), true);
  for (int64_t step = 0; step < options.max_new_tokens(); ++step) {
    const Tensor last = model.forward(input).last.select(1, -1);  // [B, E]
    const Tensor next = sampler.next(model.logits(last), occurred);
    collect(next, options, on_token, rows, alive);
    if (std::ranges::find(alive, true) == alive.end()) break;
    input.ids = next.clamp_min(0).unsqueeze(1);  // rows that have ended may hold kNotFinite
    occurred.add(input.ids);
    if (input.positions) input.positions = input.positions->slice(1, -1) + 1;
  }
  return rows;
}

}  // namespace diffattn::nn
