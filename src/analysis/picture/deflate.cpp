// SPDX-License-Identifier: Apache-2.0
#include "analysis/picture/deflate.h"

#include <algorithm>
#include <array>
#include <vector>

namespace diffattn::analysis {
namespace {

constexpr std::size_t kMinMatch = 3;
constexpr std::size_t kMaxMatch = 258;
constexpr std::size_t kWindow = 32768;
constexpr std::size_t kHashBits = 15;

// RFC 1951, 3.2.5: first length or distance of each code; extra bits follow from the distance to
// the next one.
constexpr std::array<uint16_t, 29> kLengths = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                               15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                               67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<uint16_t, 30> kDistances = {
    1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
    193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};

class BitWriter {
 public:
  explicit BitWriter(std::string& out) : out_(out) {}

  void bits(uint32_t value, int count) {
    hold_ |= static_cast<uint64_t>(value) << held_;
    held_ += count;
    for (; held_ >= 8; held_ -= 8, hold_ >>= 8) out_ += static_cast<char>(hold_);
  }
  // Huffman codes go out with their first bit first.
  void code(uint32_t value, int count) {
    uint32_t reversed = 0;
    for (int i = 0; i < count; ++i) reversed |= (value >> i & 1) << (count - 1 - i);
    bits(reversed, count);
  }
  void flush() {
    if (held_ > 0) bits(0, 8 - held_);
  }

 private:
  std::string& out_;
  uint64_t hold_ = 0;
  int held_ = 0;
};

void write_symbol(BitWriter& out, uint32_t symbol) {
  if (symbol < 144) {
    out.code(0x30 + symbol, 8);
  } else if (symbol < 256) {
    out.code(0x190 + symbol - 144, 9);
  } else if (symbol < 280) {
    out.code(symbol - 256, 7);
  } else {
    out.code(0xc0 + symbol - 280, 8);
  }
}

template <std::size_t N>
std::size_t code_for(const std::array<uint16_t, N>& firsts, std::size_t value) {
  return static_cast<std::size_t>(std::upper_bound(firsts.begin(), firsts.end(), value) -
                                  firsts.begin()) -
         1;
}

int length_extra(std::size_t code) {
  return code < 8 || code == 28 ? 0 : static_cast<int>(code - 4) / 4;
}

int distance_extra(std::size_t code) { return code < 4 ? 0 : static_cast<int>(code - 2) / 2; }

void write_match(BitWriter& out, std::size_t length, std::size_t distance) {
  const std::size_t length_code = code_for(kLengths, length);
  write_symbol(out, static_cast<uint32_t>(257 + length_code));
  out.bits(static_cast<uint32_t>(length - kLengths[length_code]), length_extra(length_code));
  const std::size_t distance_code = code_for(kDistances, distance);
  out.code(static_cast<uint32_t>(distance_code), 5);
  out.bits(static_cast<uint32_t>(distance - kDistances[distance_code]),
           distance_extra(distance_code));
}

std::size_t hash_at(std::span<const uint8_t> data, std::size_t at) {
  const uint32_t word = data[at] | uint32_t{data[at + 1]} << 8 | uint32_t{data[at + 2]} << 16;
  return word * 2654435761u >> (32 - kHashBits);
}

uint32_t adler32(std::span<const uint8_t> data) {
  uint32_t a = 1;
  uint32_t b = 0;
  for (const uint8_t byte : data) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

}  // namespace

std::string zlib_stream(std::span<const uint8_t> data) {
  std::string stream = "\x78\x01";
  BitWriter out(stream);
  out.bits(1, 1);                                                 // the last block
  out.bits(1, 2);                                                 // fixed codes
  std::vector<std::size_t> last(std::size_t{1} << kHashBits, 0);  // position + 1 of each hash
  for (std::size_t at = 0; at < data.size();) {
    std::size_t length = 0;
    std::size_t from = 0;
    if (at + kMinMatch <= data.size()) {
      std::size_t& slot = last[hash_at(data, at)];
      from = slot;
      slot = at + 1;
      const std::size_t most = std::min(kMaxMatch, data.size() - at);
      if (from != 0 && at - (from - 1) <= kWindow) {
        while (length < most && data[from - 1 + length] == data[at + length]) ++length;
      }
    }
    if (length >= kMinMatch) {
      write_match(out, length, at - (from - 1));
      at += length;
    } else {
      write_symbol(out, data[at++]);
    }
  }
  write_symbol(out, 256);
  out.flush();
  const uint32_t check = adler32(data);
  for (int shift = 24; shift >= 0; shift -= 8) stream += static_cast<char>(check >> shift);
  return stream;
}

}  // namespace diffattn::analysis
