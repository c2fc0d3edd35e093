// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/diffattn/generate/prompts.h"
#include "io/chat_prompt.h"

namespace diffattn::app {

/// A conversation with a model, written by the model's chat template.
class Conversation {
 public:
  /// `system` is the system message; empty for none. Throws io::Error if the template refuses it.
  Conversation(io::ChatTemplate chat, io::Tokenizer tokenizer, const std::string& system);

  /// Adds what the user says. Returns the whole conversation, up to the beginning of the reply.
  Prompts ask(const std::string& text);
  /// Adds the reply of the model.
  void answer(const std::string& text);
  /// Forgets everything but the system message.
  void reset();

  /// Tokens that end a reply.
  const Ids& ends() const { return ends_; }

 private:
  io::ChatPrompts prompts_;
  std::vector<io::ChatMessage> opening_, messages_;
  Ids ends_;
};

}  // namespace diffattn::app
