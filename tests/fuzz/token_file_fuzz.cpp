// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/token_file.h"

#include <algorithm>
#include <span>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  file.set(fuzz::text_of(data, size));
  io::TokenFile::is_one(file.path());
  fuzz::accepted([&] {
    const io::TokenFile tokens = io::TokenFile::open(file.path());
    const uint64_t count = tokens.tokens();
    fuzz::expect(count * tokens.header().token_bytes <= size, "the tokens are inside the file");
    std::vector<io::TokenId> read(std::min<uint64_t>(count, 16));
    if (fuzz::accepted([&] { tokens.read(count - read.size(), read); })) {
      for (const io::TokenId token : read) {
        fuzz::expect(token < tokens.header().vocab_size, "every token is in the vocabulary");
      }
    }
    io::TokenId beyond = 0;
    fuzz::expect(!fuzz::accepted([&] { tokens.read(count, std::span(&beyond, 1)); }),
                 "a read beyond the end fails");
    tokens.verify();
  });
  return 0;
}
