// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/tokenizer.h"

#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr std::string_view kText =
      "ab hi 12 x's <s>a  \xff\xe4\xb8\x96\n\xe2\x96\x81"
      "0";
  std::optional<io::Tokenizer> tokenizer;
  if (!fuzz::accepted(
          [&] { tokenizer = io::Tokenizer::parse(fuzz::text_of(data, size), "tokenizer.json"); })) {
    return 0;
  }
  std::vector<io::TokenId> ids;
  fuzz::accepted([&] { ids = tokenizer->encode(kText); });
  for (const io::TokenId id : ids) {
    fuzz::expect(tokenizer->id_to_token(id).has_value(), "every id has a token");
  }
  io::StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const io::TokenId id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  fuzz::expect(streamed == tokenizer->decode(ids), "a stream decodes to the whole text");

  const std::string written = tokenizer->to_json();
  const io::Tokenizer again = io::Tokenizer::parse(written, "again.json");
  fuzz::expect(again.to_json() == written, "a written tokenizer reads back unchanged");
  return 0;
}
