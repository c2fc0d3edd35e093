// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Chat templates of Hugging Face tokenizers: Jinja texts that write a conversation as the model saw
// conversations in training.

namespace diffattn::io {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

/// A parsed chat template. Immutable, cheap to copy and thread-safe.
///
/// It understands the part of Jinja that published templates use and renders it as `transformers`
/// does:
///   tags         if, for, set, macro, break, continue, generation; comments; white-space control
///   filters      capitalize count d default dictsort first int items join last length list lower
///                map reject rejectattr replace reverse safe select selectattr string tojson trim
///                upper
///   tests        boolean callable defined eq equalto even false float ge gt in integer iterable le
///                lt mapping ne none number odd sequence string true undefined
///   methods      of strings: capitalize endswith find format join lower lstrip removeprefix
///   removesuffix
///                replace rsplit rstrip split startswith strip title upper; of mappings: get items
///                keys values
///   functions    dict namespace raise_exception range strftime_now
///   variables    messages, add_generation_prompt, the special tokens; tools and documents are none
/// Other letters than those of ASCII have no upper and lower case. A tuple is a list.
///
/// A template has at most 256 KiB and nests at most 128 deep. A rendering takes at most 2^22 steps
/// and makes at most 64 MiB of text and lists.
class ChatTemplate {
 public:
  /// Special tokens by the name of their variable: {"bos_token", "<s>"}.
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  /// Throws Error with the line, what was expected and what came; file is only used for messages.
  static ChatTemplate parse(std::string_view text, const std::string& file,
                            SpecialTokens tokens = {});

  /// Returns the conversation as text that includes its special tokens: encode it without
  /// add_special_tokens. add_generation_prompt ends the text with the beginning of a reply. Throws
  /// Error if the template refuses the messages.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;

  const SpecialTokens& special_tokens() const noexcept;
  const std::string& file() const noexcept;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Returns the chat template of a model folder, or nullopt if it has none: chat_template.jinja,
/// else `chat_template` in tokenizer_config.json, a text or a list with one that is named
/// "default". Its special tokens are those of tokenizer_config.json. Throws Error.
std::optional<ChatTemplate> chat_template_in(const std::string& folder);

}  // namespace diffattn::io
