// SPDX-License-Identifier: Apache-2.0
//
// The input is the tokenizer_config.json of a model folder, which has a chat template and special
// tokens.

#include <algorithm>
#include <optional>

#include "io/chat_template/chat_template.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFolder folder;
  folder.put("tokenizer_config.json", fuzz::text_of(data, size));
  std::optional<io::ChatTemplate> chat;
  if (!fuzz::accepted([&] { chat = io::chat_template_in(folder.path()); }) || !chat) return 0;
  const auto& tokens = chat->special_tokens();
  for (const auto& [name, token] : tokens) {
    fuzz::expect(name.ends_with("_token") && token.size() <= 4096, "special tokens are short");
    fuzz::expect(std::ranges::count(tokens, name, [](const auto& one) { return one.first; }) == 1,
                 "each has a name of its own");
  }
  fuzz::accepted([&] { chat->render({{"system", "Be brief."}, {"user", "Hi"}}, true); });
  return 0;
}
