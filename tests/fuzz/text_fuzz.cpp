// SPDX-License-Identifier: Apache-2.0
//
// Any text, through every word pattern, the byte tokenizer and the Unicode functions.

#include <algorithm>
#include <vector>

#include "diffattn/io/tokenizer.h"
#include "io/tokenizer/patterns.h"
#include "io/unicode/characters.h"
#include "io/unicode/nfc.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const io::Tokenizer tokenizer = io::Tokenizer::bytes();
  const std::string_view text = fuzz::text_of(data, size);

  for (const auto pattern :
       {io::Pattern::kGpt2, io::Pattern::kLlama3, io::Pattern::kQwen2, io::Pattern::kO200k}) {
    for (size_t at = 0; at < size;) {
      const size_t end = io::match_end(pattern, text, at);
      fuzz::expect(end > at && end <= size, "every match ends after it begins");
      at = end;
    }
  }
  const std::vector<io::TokenId> ids = tokenizer.encode(text, {.special_from_text = false});
  fuzz::expect(tokenizer.decode_bytes(ids) == text, "bytes survive encoding");

  const std::string composed = io::unicode::nfc(text);
  fuzz::expect(io::unicode::nfc(composed) == composed, "NFC twice is NFC once");
  fuzz::expect(composed.size() <= 3 * size, "NFC makes text at most three times as long");
  const std::string valid = io::unicode::replace_invalid(text);
  fuzz::expect(io::unicode::is_valid(valid), "replace_invalid returns valid text");
  fuzz::expect(io::unicode::is_valid(text) == (valid == text), "valid text stays unchanged");

  io::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const io::TokenId id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  fuzz::expect(streamed == tokenizer.decode(ids), "a stream decodes to the whole text");
  return 0;
}
