// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/interactive.h"

#include <unistd.h>

#include "apps/diffattn/options/input_stream.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/stop_signal.h"

namespace diffattn::app {

int continue_interactively(Generator& generator) {
  const bool person = isatty(STDIN_FILENO) == 1;
  if (person) print_note("One prompt per line. Ctrl-C ends a continuation, Ctrl-D the program.\n");
  io::LineReader lines = input_lines("-");
  const uint64_t seed = generator.sampling.seed();
  const ContinueEvents printed{.show = [](const std::string& text) {
    print_out("{}", text);
    std::fflush(stdout);
  }};
  for (uint64_t turn = 0;; ++turn) {
    if (person) print_note("> ");
    std::string line;
    if (!lines.next(line)) break;
    if (line.empty()) continue;
    const Prompts prompt = encoded_prompts({line}, *generator.tokenizer);
    generator.sampling.seed(seed + turn);  // the same prompt gives another sample
    printed.show(line);
    ContinueEvents events = printed;
    const StopSignal signal;
    events.stopped = [&] { return signal.received(); };
    const Continuations all = continue_prompts(generator, prompt, events);
    print_out("\n");
    warn_of_length(prompt, all, generator.model->config.max_position_embeddings);
    note_speed(all);
  }
  if (person) print_note("\n");
  return 0;
}

}  // namespace diffattn::app
