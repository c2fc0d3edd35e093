// SPDX-License-Identifier: Apache-2.0
//
// Trains a tokenizer on the input. The first byte chooses the options.

#include <array>

#include "diffattn/io/tokenizer_training.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static constexpr std::array kPatterns = {io::WordPattern::kGpt2, io::WordPattern::kLlama3,
                                           io::WordPattern::kQwen2};
  io::TrainingOptions options;
  options.vocab_size = 250 + data[0];
  options.min_frequency = data[0] % 3;
  options.pattern = kPatterns[data[0] % kPatterns.size()];
  options.nfc = data[0] >= 128;
  options.threads = 1;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  fuzz::accepted([&] {
    io::TokenizerTrainer trainer(options);
    trainer.add_text(text);
    const io::Tokenizer tokenizer = trainer.train();
    fuzz::expect(tokenizer.vocab_size() <= options.vocab_size, "the vocabulary has its size");
    if (options.nfc) return;
    const auto ids = tokenizer.encode(text, {.special_from_text = false});
    fuzz::expect(tokenizer.decode_bytes(ids) == text, "bytes survive encoding");
  });
  return 0;
}
