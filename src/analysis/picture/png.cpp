// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <string_view>
#include <vector>

#include "analysis/picture/raster.h"
#include "analysis/report/zlib_stream.h"

namespace diffattn::analysis {
namespace {

const Bytef* zlib_bytes(const void* data) { return static_cast<const Bytef*>(data); }

void append_be32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_be32(out, static_cast<uint32_t>(data.size()));
  out.append(type).append(data);
  const uLong crc = crc32_z(0, zlib_bytes(type.data()), type.size());
  append_be32(out, static_cast<uint32_t>(crc32_z(crc, zlib_bytes(data.data()), data.size())));
}

}  // namespace

std::string encode_png(const Raster& raster) {
  const auto row_bytes = static_cast<size_t>(raster.width() * 3);
  std::vector<uint8_t> lines;
  lines.reserve((row_bytes + 1) * static_cast<size_t>(raster.height()));
  for (size_t at = 0; at < raster.bytes().size(); at += row_bytes) {
    lines.push_back(0);  // filter type "none": cells of one colour compress best unfiltered
    const auto row = raster.bytes().begin() + static_cast<ptrdiff_t>(at);
    lines.insert(lines.end(), row, row + static_cast<ptrdiff_t>(row_bytes));
  }
  std::string header;
  append_be32(header, static_cast<uint32_t>(raster.width()));
  append_be32(header, static_cast<uint32_t>(raster.height()));
  header.append({8, 2, 0, 0, 0});  // 8 bits, RGB, deflate, adaptive filters, not interlaced
  std::string out = "\x89PNG\r\n\x1a\n";
  append_chunk(out, "IHDR", header);
  append_chunk(out, "IDAT", zlib_stream(lines, Effort::kBest));
  append_chunk(out, "IEND", "");
  return out;
}

}  // namespace diffattn::analysis
