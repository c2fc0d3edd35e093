// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/chat_template.h"

#include <optional>

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<io::ChatMessage> kMessages = {
      {"system", " Be brief.\n"}, {"user", "Hi <b>\xc3\xa4\xff"}, {"assistant", "<t>a</t> b"}};
  const std::string_view text = fuzz::text_of(data, size);
  std::optional<io::ChatTemplate> chat;
  if (!fuzz::accepted([&] {
        chat = io::ChatTemplate::parse(text, "fuzz.jinja", {{"bos_token", "<s>"}});
      })) {
    return 0;
  }
  std::string first, again;
  const bool rendered = fuzz::accepted([&] { first = chat->render(kMessages, true); });
  if (text.find("strftime_now") != text.npos) return 0;
  fuzz::expect(rendered == fuzz::accepted([&] { again = chat->render(kMessages, true); }),
               "a template fails always or never");
  fuzz::expect(first == again, "a template gives the same text again");
  return 0;
}
