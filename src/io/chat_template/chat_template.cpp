// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/chat_template.h"

#include <nlohmann/json.hpp>

#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "io/chat_template/evaluator.h"
#include "io/chat_template/parser.h"

namespace diffattn::io {

struct ChatTemplate::Impl {
  std::string file;
  SpecialTokens tokens;
  chat::Body body;
};

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& file,
                                 SpecialTokens tokens) {
  return ChatTemplate(std::make_shared<const Impl>(
      Impl{.file = file, .tokens = std::move(tokens), .body = chat::parse(text, file)}));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const {
  using chat::Value;
  chat::List list;
  for (const ChatMessage& message : messages) {
    list.push_back(
        Value(chat::Dict{{"role", Value(message.role)}, {"content", Value(message.content)}}));
  }
  chat::Dict variables{{"messages", Value(std::move(list))},
                       {"add_generation_prompt", Value(add_generation_prompt)},
                       {"tools", Value(chat::None())},
                       {"documents", Value(chat::None())}};
  for (const auto& [name, token] : impl_->tokens) variables.emplace_back(name, Value(token));
  return chat::Evaluator(impl_->file, variables).render(impl_->body);
}

const ChatTemplate::SpecialTokens& ChatTemplate::special_tokens() const noexcept {
  return impl_->tokens;
}
const std::string& ChatTemplate::file() const noexcept { return impl_->file; }

namespace {

constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr uint64_t kMaxTokenizerConfig = uint64_t{16} << 20;
constexpr size_t kMaxSpecialToken = 4096;

/// Returns the special tokens, each written as a string or as an object with its content.
ChatTemplate::SpecialTokens special_tokens_of(const JsonValue& config) {
  ChatTemplate::SpecialTokens tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto value = config.find(name);
    if (!value) continue;
    const JsonValue content = value->is_object() ? value->at("content") : *value;
    tokens.emplace_back(name, content.to_string(kMaxSpecialToken));
  }
  return tokens;
}

/// Returns the text of the template in tokenizer_config.json, or nullopt.
std::optional<JsonValue> template_of(const JsonValue& config) {
  auto value = config.find("chat_template");
  if (!value || !value->is_array()) return value;
  for (size_t i = 0; i < value->size(); ++i) {
    const JsonValue entry = value->at(i);
    if (entry.at("name").to_string() == "default") return entry.at("template");
  }
  value->fail("a template with the name 'default'");
}

}  // namespace

std::optional<ChatTemplate> chat_template_in(const std::string& folder) {
  const Directory directory = Directory::open(folder);
  ChatTemplate::SpecialTokens tokens;
  std::optional<std::string> text;
  std::string file = directory.join(kTemplateFile);
  if (directory.contains(kTemplateFile)) text = read_text(file, chat::kMaxTemplateBytes);
  if (directory.contains(kTokenizerConfig)) {
    const std::string path = directory.join(kTokenizerConfig);
    const nlohmann::json document = read_json(path, kMaxTokenizerConfig);
    const JsonValue config(document, path);
    tokens = special_tokens_of(config);
    if (const auto found = text ? std::nullopt : template_of(config)) {
      text = found->to_string(chat::kMaxTemplateBytes);
      file = path + ": key '" + found->path() + "'";
    }
  }
  if (!text) return std::nullopt;
  return ChatTemplate::parse(*text, file, std::move(tokens));
}

}  // namespace diffattn::io
