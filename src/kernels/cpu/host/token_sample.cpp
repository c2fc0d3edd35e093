// SPDX-License-Identifier: Apache-2.0
//
// Chooses the next token of each row, by the rules of cuda/token/sample.cu:
//
//   (1) penalise the logits; find the largest, and the log-sum-exp of the unpenalised ones
//   (2) temperature 0: take the largest
//   (3) else keep the logits that top_k and top_p keep, with weights exp((logit - largest) / T)
//   (4) draw a number below the kept weights' sum and take the token that it falls on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/counter_random.h"
#include "kernels/cpu/parallel.h"
#include "kernels/token_step.h"

namespace diffattn::cpu::token {
namespace {

struct Sampler {
  const Sampling& sampling;
  const int64_t row;
  const SamplingRule rule = sampling.rules[row];
  const int size = sampling.vocabulary;
  const float* const logits = sampling.logits + row * size;
  const uint16_t* const counts = sampling.counts + row * size;
  std::vector<float> penalised = {};

  Chosen run(uint64_t step) {
    const float* const end = logits + size;
    float top = -INFINITY;  // (1)
    for (const float* x = logits; x != end; ++x) {
      if (!(*x < INFINITY)) return {-1, 0.0f};  // also NaN
      top = std::max(top, *x);
    }
    if (top == -INFINITY) return {-1, 0.0f};
    double sum = 0.0;
    for (const float* x = logits; x != end; ++x) sum += std::exp(*x - top);
    penalise();
    const auto likeliest = std::ranges::max_element(penalised) - penalised.begin();
    const int token = rule.temperature == 0.0f
                          ? static_cast<int>(likeliest)  // (2)
                          : draw(penalised[static_cast<size_t>(likeliest)], step);
    return {token, logits[token] - top - static_cast<float>(std::log(sum))};
  }

 private:
  void penalise() {
    penalised.assign(logits, logits + size);
    if (rule.repetition == 1.0f && rule.presence == 0.0f && rule.frequency == 0.0f) return;
    for (int i = 0; i < size; ++i) {
      if (counts[i] == 0) continue;
      float& x = penalised[static_cast<size_t>(i)];
      x = x > 0.0f ? x / rule.repetition : x * rule.repetition;
      const int generated = counts[i] & ~Sampling::kInPrompt;
      if (generated > 0) x -= rule.presence + rule.frequency * static_cast<float>(generated);
    }
  }

  int draw(float largest, uint64_t step) const {
    std::vector<int> kept(static_cast<size_t>(size));
    std::iota(kept.begin(), kept.end(), 0);
    const auto logit = [&](int i) { return penalised[static_cast<size_t>(i)]; };
    const auto weight = [&](int i) {
      return std::exp((double{logit(i)} - largest) / rule.temperature);
    };
    const bool some = rule.top_k > 0 && rule.top_k < size;
    if (some || rule.top_p < 1.0f) {  // (3); tokens as likely as the last kept one stay
      std::ranges::sort(kept, [&](int i, int j) { return logit(i) > logit(j); });
      const auto cut_after = [&](size_t last) {
        const float least = logit(kept[last]);
        while (last + 1 < kept.size() && logit(kept[last + 1]) == least) ++last;
        kept.resize(last + 1);
      };
      if (some) cut_after(static_cast<size_t>(rule.top_k) - 1);
      if (rule.top_p < 1.0f) {
        double all = 0.0, before = 0.0;
        for (const int i : kept) all += weight(i);
        size_t last = 0;
        while (last + 1 < kept.size() && (before += weight(kept[last])) < rule.top_p * all) ++last;
        cut_after(last);
      }
      std::ranges::sort(kept);
    }
    double sum = 0.0;  // (4)
    for (const int i : kept) sum += weight(i);
    double target = static_cast<double>(random_bits(rule.seed, step) >> 11) * 0x1p-53 * sum;
    for (const int i : kept) {
      target -= weight(i);
      if (target < 0.0) return i;
    }
    return kept.back();
  }
};

}  // namespace

void sample(const Batch& batch, const Sampling& sampling) {
  parallel_for(batch.rows, worker_count(batch.rows), [&](int64_t row, int64_t) {
    const int32_t step = sampling.steps[row];
    if (step < 0) return;
    const Chosen chosen = Sampler{sampling, row}.run(static_cast<uint64_t>(step));
    sampling.chosen[row * Sampling::kRing + step % Sampling::kRing] = chosen;
    sampling.steps[row] = step + 1;
    if (chosen.token < 0) return;
    uint16_t& count = sampling.counts[row * sampling.vocabulary + chosen.token];
    if ((count & ~Sampling::kInPrompt) != 0x7fff) ++count;
    batch.tokens[row] = chosen.token;
    batch.positions[row] += 1;
    batch.lengths[row] += 1;
  });
}

}  // namespace diffattn::cpu::token
