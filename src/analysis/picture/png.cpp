// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <span>
#include <string_view>

#include "analysis/picture/deflate.h"
#include "analysis/picture/raster.h"

namespace diffattn::analysis {
namespace {

uint32_t crc32(std::string_view data) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> out{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xedb88320u ^ value >> 1 : value >> 1;
      out[i] = value;
    }
    return out;
  }();
  uint32_t crc = 0xffffffffu;
  for (const char c : data) crc = table[(crc ^ static_cast<uint8_t>(c)) & 255] ^ crc >> 8;
  return ~crc;
}

void append_be32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_be32(out, static_cast<uint32_t>(data.size()));
  std::string body(type);
  body.append(data);
  out.append(body);
  append_be32(out, crc32(body));
}

}  // namespace

std::string encode_png(const Raster& raster) {
  const auto row_bytes = static_cast<std::size_t>(raster.width() * 3);
  std::vector<uint8_t> lines;
  lines.reserve((row_bytes + 1) * static_cast<std::size_t>(raster.height()));
  for (std::size_t at = 0; at < raster.bytes().size(); at += row_bytes) {
    lines.push_back(0);  // no filter: flat cells repeat as they are
    const auto row = raster.bytes().begin() + static_cast<std::ptrdiff_t>(at);
    lines.insert(lines.end(), row, row + static_cast<std::ptrdiff_t>(row_bytes));
  }
  std::string header;
  append_be32(header, static_cast<uint32_t>(raster.width()));
  append_be32(header, static_cast<uint32_t>(raster.height()));
  header.append({8, 2, 0, 0, 0});  // 8 bits, RGB, deflate, adaptive filters, not interlaced
  std::string out = "\x89PNG\r\n\x1a\n";
  append_chunk(out, "IHDR", header);
  append_chunk(out, "IDAT", zlib_stream(lines));
  append_chunk(out, "IEND", "");
  return out;
}

}  // namespace diffattn::analysis
