// SPDX-License-Identifier: Apache-2.0
#include "io/chat_prompt.h"

#include <algorithm>
#include <utility>

#include "diffattn/io/error.h"
#include "io/unicode/utf8.h"

namespace diffattn::io {
namespace {

constexpr char kSpaces[] = " \t\r\n\v\f";

/// Returns two noncharacters of Unicode that no message has. Templates copy them like text.
std::pair<std::string, std::string> free_marks(const std::vector<ChatMessage>& messages) {
  std::vector<std::string> marks;
  for (uint32_t code = 0xfdd0; code <= 0xfdef && marks.size() < 2; ++code) {
    std::string mark;
    unicode::append_utf8(code, mark);
    const bool used = std::ranges::any_of(messages, [&](const ChatMessage& message) {
      return message.content.find(mark) != std::string::npos;
    });
    if (!used) marks.push_back(mark);
  }
  if (marks.size() < 2) {
    throw Error("messages", "expected text without noncharacters, got nearly all of U+FDD0..FDEF");
  }
  return {marks[0], marks[1]};
}

/// Takes the marks out of a text and returns the ranges between them.
std::vector<EncodeOptions::Range> take_marks(std::string& text, const std::string& open,
                                             const std::string& close) {
  std::vector<EncodeOptions::Range> ranges;
  std::string plain;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const bool opens = text.compare(at, open.size(), open) == 0;
    if (!opens && text.compare(at, close.size(), close) != 0) {
      plain += text[at++];
      continue;
    }
    at += opens ? open.size() : close.size();
    if (inside) ranges.back().end = plain.size();
    if (opens) ranges.push_back({plain.size(), plain.size()});
    inside = opens;
  }
  if (inside) ranges.back().end = plain.size();
  text = std::move(plain);
  return ranges;
}

}  // namespace

ChatPrompts::ChatPrompts(ChatTemplate chat, Tokenizer tokenizer)
    : chat_(std::move(chat)), tokenizer_(std::move(tokenizer)) {
  for (const auto& [name, token] : chat_.special_tokens()) {
    if (name == "eos_token") add_end_of(token);
  }
  static const std::string kReply = "A reply of the model.";
  const std::string text = chat_.render({{"user", "A question."}, {"assistant", kReply}},
                                        /*add_generation_prompt=*/false);
  const size_t reply = text.rfind(kReply);
  if (reply == text.npos) return;
  const size_t end = text.find_first_not_of(" \n", reply + kReply.size());
  if (end != text.npos) add_end_of(text.substr(end));
}

/// Adds the first token of a text if it is one that text of a model cannot contain.
void ChatPrompts::add_end_of(const std::string& text) {
  const auto ids = tokenizer_.encode(text, {.add_special_tokens = false});
  if (ids.empty() || std::ranges::find(ends_, ids[0]) != ends_.end()) return;
  const auto& added = tokenizer_.added_tokens();
  if (std::ranges::any_of(added, [&](const AddedToken& token) { return token.id == ids[0]; })) {
    ends_.push_back(ids[0]);
  }
}

ChatPrompts::Prompt ChatPrompts::prompt(const std::vector<ChatMessage>& messages) const {
  const auto [open, close] = free_marks(messages);
  std::vector<ChatMessage> marked_messages;
  for (const ChatMessage& message : messages) {
    marked_messages.push_back({message.role, marked(message.content, open, close)});
  }
  Prompt prompt;
  prompt.text = chat_.render(marked_messages, /*add_generation_prompt=*/true);
  const auto ranges = take_marks(prompt.text, open, close);
  prompt.ids = tokenizer_.encode(prompt.text, {.add_special_tokens = false, .untrusted = ranges});
  if (prompt.ids.empty()) {
    throw Error(chat_.file(), "expected text for the conversation, got none");
  }
  return prompt;
}

/// Puts marks around every special token that a message spells out, and around its first and last
/// character, which could complete a special token that the template begins. White space at the
/// ends stays outside, where templates trim it.
std::string ChatPrompts::marked(const std::string& content, const std::string& open,
                                const std::string& close) const {
  const size_t first = content.find_first_not_of(kSpaces);
  if (first == content.npos) return content;
  std::vector<bool> untrusted(content.size(), false);
  const auto mark = [&](size_t begin, size_t end) {
    std::fill(untrusted.begin() + static_cast<ptrdiff_t>(begin),
              untrusted.begin() + static_cast<ptrdiff_t>(end), true);
  };
  const auto character_end = [&](size_t at) {
    return at + unicode::character_at(content, at).size;
  };
  mark(first, character_end(first));
  size_t last = content.find_last_not_of(kSpaces);
  const size_t end = last + 1;
  while (last > first && (static_cast<uint8_t>(content[last]) & 0xc0) == 0x80) --last;
  mark(last, end);
  for (const AddedToken& token : tokenizer_.added_tokens()) {
    if (!token.special || token.content.empty()) continue;
    for (size_t at = content.find(token.content); at != content.npos;
         at = content.find(token.content, at + 1)) {
      mark(at, at + token.content.size());
    }
  }
  std::string result;
  for (size_t at = 0; at < content.size(); ++at) {
    const bool before = at > 0 && untrusted[at - 1];
    if (untrusted[at] && !before) result += open;
    if (!untrusted[at] && before) result += close;
    result += content[at];
  }
  return untrusted.back() ? result + close : result;
}

}  // namespace diffattn::io
