// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/base64.h"

namespace diffattn::analysis {

std::string base64(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = uint32_t{bytes[i]} << 16;
    if (count > 1) word |= uint32_t{bytes[i + 1]} << 8;
    if (count > 2) word |= bytes[i + 2];
    out += kDigits[word >> 18];
    out += kDigits[word >> 12 & 63];
    out += count > 1 ? kDigits[word >> 6 & 63] : '=';
    out += count > 2 ? kDigits[word & 63] : '=';
  }
  return out;
}

}  // namespace diffattn::analysis
