// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/chat_template/chat_template.h"

namespace diffattn::io {

/// Writes conversations as ids, by a chat template. What a message says never becomes a special
/// token: only the template can write one. Immutable, cheap to copy and thread-safe.
class ChatPrompts {
 public:
  /// Throws Error if the template refuses a short conversation.
  ChatPrompts(ChatTemplate chat, Tokenizer tokenizer);

  struct Prompt {
    std::string text;
    std::vector<TokenId> ids;
  };
  /// Returns the conversation up to the beginning of the reply. Throws Error if the template
  /// refuses the messages or writes nothing.
  Prompt prompt(const std::vector<ChatMessage>& messages) const;

  /// Tokens that end a reply: the tokenizer's eos_token, and the token that the template writes
  /// behind a reply.
  const std::vector<TokenId>& ends() const { return ends_; }

 private:
  void add_end_of(const std::string& text);
  std::string marked(const std::string& content, const std::string& open,
                     const std::string& close) const;

  ChatTemplate chat_;
  Tokenizer tokenizer_;
  std::vector<TokenId> ends_;
};

}  // namespace diffattn::io
