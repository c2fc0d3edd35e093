// SPDX-License-Identifier: Apache-2.0
//
// The input is the JSON header. The target adds the length before it and the data after it, so that
// mutations need not keep them right; a first byte other than '{' or a space makes the input a
// whole file instead.

#include <algorithm>
#include <span>

#include "diffattn/io/safetensors.h"
#include "tests/fuzz/fuzz.h"

using namespace diffattn;

namespace {

/// Returns the largest number in text, up to 4096: the size of the data that a header may declare.
size_t largest_number(std::string_view text) {
  size_t largest = 0, number = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    number = digit ? std::min<size_t>(10 * number + static_cast<size_t>(c - '0'), 4096) : 0;
    largest = std::max(largest, number);
  }
  return largest;
}

std::string file_of(std::string_view input) {
  if (!input.starts_with('{') && !input.starts_with(' ')) return std::string(input);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{input.size()} >> (8 * i));
  return file.append(input).append(largest_number(input), '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  const std::string content = file_of(fuzz::text_of(data, size));
  const auto bytes = std::as_bytes(std::span(content.data(), content.size()));
  if (!fuzz::accepted([&] { io::SafetensorsHeader::parse(bytes, content.size(), "fuzz"); })) {
    return 0;
  }
  file.set(content);
  const io::SafetensorsReader reader = io::SafetensorsReader::open(file.path());
  uint64_t end = 0;
  for (const io::TensorInfo& info : reader.header().tensors()) {
    fuzz::expect(info.begin == end, "tensors leave no gaps");
    fuzz::expect(reader.find(info.name) == &info, "every tensor is found by its name");
    fuzz::expect(reader.read_bytes(info.name).size() == info.end - info.begin,
                 "every tensor can be read");
    end = info.end;
  }
  fuzz::expect(reader.header().data_begin() + end == content.size(), "the tensors fill the file");
  return 0;
}
