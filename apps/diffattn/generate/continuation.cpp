// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/continuation.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/diffattn/terminal/print.h"

namespace diffattn::app {

int64_t Continuations::tokens() const {
  int64_t count = 0;
  for (const Continuation& row : rows) count += std::ssize(row.ids);
  return count;
}

void note_speed(const Continuations& all) {
  std::fflush(stdout);
  if (isatty(STDERR_FILENO) != 1) return;
  const int64_t count = all.tokens();
  print_note("diffattn: {} {} in {:.2f} s, {:.1f} tokens/s\n", count,
             count == 1 ? "token" : "tokens", all.seconds,
             static_cast<double>(count) / std::max(all.seconds, 1e-9));
}

Continuations continue_prompts(Generator& generator, const Prompts& prompts,
                               const ContinueEvents& events) {
  Continuations all;
  all.rows.resize(prompts.ids.size());
  for (Continuation& row : all.rows) {
    if (generator.tokenizer) row.decoder.emplace(*generator.tokenizer);
    row.text = io::StopText(generator.stop);
  }
  const auto take = [&](size_t index, int64_t token) {
    Continuation& row = all.rows[index];
    if (events.stopped()) return false;
    if (!row.decoder) return true;
    events.show(row.text.push(row.decoder->push(static_cast<io::TokenId>(token))));
    return !row.text.found();
  };
  const auto start = std::chrono::steady_clock::now();
  auto ids = generator.engine.generate(prompts.ids, generator.sampling, take);
  all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (size_t i = 0; i < all.rows.size(); ++i) {
    Continuation& row = all.rows[i];
    row.ids = std::move(ids[i]);
    if (row.decoder) events.show(row.text.finish(row.decoder->finish()));
  }
  return all;
}

void warn_of_length(const Prompts& prompts, const Continuations& all, int64_t trained) {
  size_t longest = 0;
  for (size_t i = 0; i < all.rows.size(); ++i) {
    longest = std::max(longest, prompts.ids[i].size() + all.rows[i].ids.size());
  }
  if (std::cmp_less_equal(longest, trained)) return;
  std::fflush(stdout);
  print_note("diffattn: the text has {} tokens, but the model was made for {}\n", longest, trained);
}

}  // namespace diffattn::app
