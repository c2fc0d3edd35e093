// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/diffattn/generate/prompts.h"
#include "diffattn/infer/generator.h"
#include "diffattn/io/tokenizer.h"
#include "io/stop_text.h"

namespace diffattn::app {

/// A language model with the rules by which it continues prompts.
struct Generator {
  nn::CausalLM model;
  std::optional<io::Tokenizer> tokenizer;
  nn::SamplingOptions sampling;
  std::vector<std::string> stop;  // texts that end a continuation
  infer::Generator engine{model};
};

/// The continuation of one prompt.
struct Continuation {
  std::optional<io::StreamDecoder> decoder;  // none without a tokenizer
  io::StopText text;
  Ids ids;
};

/// The continuations of all prompts, and the time that they took.
struct Continuations {
  std::vector<Continuation> rows;
  double seconds = 0.0;

  int64_t tokens() const;
};

struct ContinueEvents {
  /// Receives each piece of text as soon as it is complete.
  std::function<void(const std::string&)> show = [](const std::string&) {};
  /// Ends the continuations if it returns true.
  std::function<bool()> stopped = [] { return false; };
};

Continuations continue_prompts(Generator& generator, const Prompts& prompts,
                               const ContinueEvents& events);

/// Prints "12 tokens in 0.52 s, 23.1 tokens/s" if standard error is a terminal. JSON has the same
/// numbers.
void note_speed(const Continuations& all);

/// Warns if a text grew beyond the positions that the model was trained for.
void warn_of_length(const Prompts& prompts, const Continuations& all, int64_t trained);

}  // namespace diffattn::app
