// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "diffattn/data/examples.h"
#include "diffattn/io/jsonl.h"
#include "diffattn/io/tokenizer.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  static const io::Tokenizer tokenizer = io::Tokenizer::bytes();
  file.set(fuzz::text_of(data, size));

  io::LineReader lines(file.path(), 64);
  std::string line;
  for (bool more = true; more;) {
    fuzz::accepted([&] { more = lines.next(line); });
    fuzz::expect(line.size() <= 64, "no line is longer than the limit");
  }
  fuzz::expect(lines.position() == size, "the lines cover the file");

  static constexpr std::array kKinds = {io::RecordKind::kText, io::RecordKind::kLabelled,
                                        io::RecordKind::kSummary};
  const io::RecordKind kind = kKinds[size % kKinds.size()];
  io::JsonlReader reader(file.path(), kind, true);
  for (io::Record record; reader.next(record);) {
  }
  fuzz::expect(reader.skipped() <= reader.line(), "no more bad lines than lines");
  if (kind == io::RecordKind::kText) return 0;
  fuzz::accepted(
      [&] { data::read_examples(file.path(), kind, tokenizer, {.skip_bad = size % 2 == 0}); });
  return 0;
}
