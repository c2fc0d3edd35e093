// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/conversation.h"

#include <algorithm>
#include <utility>

namespace diffattn::app {

Conversation::Conversation(io::ChatTemplate chat, io::Tokenizer tokenizer,
                           const std::string& system)
    : chat_(std::move(chat)), tokenizer_(std::move(tokenizer)) {
  if (!system.empty()) opening_.push_back({"system", system});
  messages_ = opening_;
  for (const auto& [name, token] : chat_.special_tokens()) {
    if (name == "eos_token") add_end_of(token);
  }
  static const std::string kReply = "A reply of the model.";
  std::vector<io::ChatMessage> example = opening_;
  example.push_back({"user", "A question."});
  example.push_back({"assistant", kReply});
  const std::string text = chat_.render(example, false);
  const size_t reply = text.rfind(kReply);
  if (reply == text.npos) return;
  const size_t end = text.find_first_not_of(" \n", reply + kReply.size());
  if (end != text.npos) add_end_of(text.substr(end));
}

std::vector<io::TokenId> Conversation::ids_of(const std::string& text) const {
  return tokenizer_.encode(text, {.add_special_tokens = false, .special_from_text = true});
}

/// Adds the first token of a text if it is one that text of a model cannot contain.
void Conversation::add_end_of(const std::string& text) {
  const std::vector<io::TokenId> ids = ids_of(text);
  if (ids.empty()) return;
  const auto& added = tokenizer_.added_tokens();
  if (std::any_of(added.begin(), added.end(),
                  [&](const io::AddedToken& token) { return token.id == ids[0]; })) {
    ends_.push_back(ids[0]);
  }
}

Prompts Conversation::ask(const std::string& text) {
  messages_.push_back({"user", text});
  std::string rendered = chat_.render(messages_, true);
  const std::vector<io::TokenId> ids = ids_of(rendered);
  return {.ids = {Ids(ids.begin(), ids.end())}, .texts = {std::move(rendered)}};
}

void Conversation::answer(const std::string& text) { messages_.push_back({"assistant", text}); }

void Conversation::reset() { messages_ = opening_; }

}  // namespace diffattn::app
