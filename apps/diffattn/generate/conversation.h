// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/diffattn/generate/prompts.h"
#include "diffattn/io/chat_template.h"
#include "diffattn/io/tokenizer.h"

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

  /// Tokens that end a reply: the tokenizer's eos_token, and the token that the template writes
  /// behind a reply.
  const Ids& ends() const { return ends_; }

 private:
  std::vector<io::TokenId> ids_of(const std::string& text) const;
  void add_end_of(const std::string& text);

  io::ChatTemplate chat_;
  io::Tokenizer tokenizer_;
  std::vector<io::ChatMessage> opening_, messages_;
  Ids ends_;
};

}  // namespace diffattn::app
