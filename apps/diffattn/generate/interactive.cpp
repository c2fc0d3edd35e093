// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/interactive.h"

#include <unistd.h>

#include "apps/diffattn/options/input_stream.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/stop_signal.h"

namespace diffattn::app {
namespace {

void show(const std::string& text) {
  print_out("{}", text);
  std::fflush(stdout);
}

/// Prints the continuation of one prompt and returns it.
std::string continue_one(Generator& generator, const Prompts& prompt) {
  const StopSignal signal;
  const ContinueEvents events{.show = show, .stopped = [&] { return signal.received(); }};
  const Continuations all = continue_prompts(generator, prompt, events);
  print_out("\n");
  warn_of_length(prompt, all, generator.model->config.max_position_embeddings);
  note_speed(all);
  return all.rows[0].text.all();
}

}  // namespace

int continue_interactively(Generator& generator, std::optional<Conversation> conversation) {
  const bool person = isatty(STDIN_FILENO) == 1;
  if (person && conversation) {
    print_note("A conversation. /reset forgets it, Ctrl-C ends a reply, Ctrl-D the program.\n");
  } else if (person) {
    print_note("One prompt per line. Ctrl-C ends a continuation, Ctrl-D the program.\n");
  }
  io::LineReader lines = input_lines("-");
  const uint64_t seed = generator.sampling.seed();
  for (uint64_t turn = 0;; ++turn) {
    if (person) print_note("> ");
    std::string line;
    if (!lines.next(line)) break;
    if (line.empty()) continue;
    generator.sampling.seed(seed + turn);  // the same prompt gives another sample
    if (!conversation) {
      const Prompts prompt = encoded_prompts({line}, *generator.tokenizer);
      show(line);
      continue_one(generator, prompt);
    } else if (line == "/reset") {
      conversation->reset();
    } else {
      conversation->answer(continue_one(generator, conversation->ask(line)));
    }
  }
  if (person) print_note("\n");
  return 0;
}

}  // namespace diffattn::app
