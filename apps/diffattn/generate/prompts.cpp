// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/generate/prompts.h"

#include <fmt/core.h>

#include <utility>

#include "apps/diffattn/options/input_stream.h"
#include "diffattn/io/error.h"

namespace diffattn::app {
namespace {

constexpr uint64_t kMostPromptBytes = uint64_t{64} << 20;

}  // namespace

const std::string& Prompts::text(size_t i) const {
  static const std::string none;
  return texts.empty() ? none : texts[i];
}

Prompts Prompts::repeated(int64_t count) const {
  Prompts all;
  for (size_t i = 0; i < ids.size(); ++i) {
    all.ids.insert(all.ids.end(), static_cast<size_t>(count), ids[i]);
    if (!texts.empty()) all.texts.insert(all.texts.end(), static_cast<size_t>(count), texts[i]);
  }
  return all;
}

Prompts encoded_prompts(std::vector<std::string> texts, const io::Tokenizer& tokenizer) {
  Prompts prompts;
  for (const std::string& text : texts) {
    const auto ids = tokenizer.encode(text);
    prompts.ids.emplace_back(ids.begin(), ids.end());
  }
  prompts.texts = std::move(texts);
  return prompts;
}

std::vector<std::string> prompt_lines(const std::string& path) {
  io::LineReader reader = input_lines(path);
  std::vector<std::string> lines;
  for (std::string line; reader.next(line);) {
    if (reader.position() > kMostPromptBytes) {
      throw io::Error(reader.name(),
                      fmt::format("expected at most {} bytes, got more", kMostPromptBytes));
    }
    if (!line.empty()) lines.push_back(std::move(line));
  }
  if (lines.empty()) {
    throw io::Error(reader.name(), "expected at least one line with a prompt, got none");
  }
  return lines;
}

}  // namespace diffattn::app
