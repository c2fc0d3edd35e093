// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/conversation.h"

#include <utility>

namespace diffattn::app {

Conversation::Conversation(io::ChatTemplate chat, io::Tokenizer tokenizer,
                           const std::string& system)
    : prompts_(std::move(chat), std::move(tokenizer)) {
  if (!system.empty()) opening_.push_back({"system", system});
  messages_ = opening_;
  std::vector<io::ChatMessage> example = opening_;
  example.push_back({"user", "A question."});
  prompts_.prompt(example);  // throws if the template refuses the system message
  ends_.assign(prompts_.ends().begin(), prompts_.ends().end());
}

Prompts Conversation::ask(const std::string& text) {
  messages_.push_back({"user", text});
  io::ChatPrompts::Prompt prompt = prompts_.prompt(messages_);
  return {.ids = {Ids(prompt.ids.begin(), prompt.ids.end())}, .texts = {std::move(prompt.text)}};
}

void Conversation::answer(const std::string& text) { messages_.push_back({"assistant", text}); }

void Conversation::reset() { messages_ = opening_; }

}  // namespace diffattn::app
