// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/error.h"

#include <utility>

namespace diffattn::io {
namespace {

std::string compose(const std::string& file, std::optional<uint64_t> offset,
                    const std::string& message) {
  if (!offset) return file + ": " + message;
  return file + ": byte " + std::to_string(*offset) + ": " + message;
}

}  // namespace

Error::Error(std::string file, std::string message)
    : diffattn::Error(compose(file, std::nullopt, message)),
      file_(std::move(file)),
      message_(std::move(message)) {}

Error::Error(std::string file, uint64_t offset, std::string message)
    : diffattn::Error(compose(file, offset, message)),
      file_(std::move(file)),
      offset_(offset),
      message_(std::move(message)) {}

std::string in_quotes(std::string_view text, char mark, size_t most) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out(1, mark);
  for (size_t i = 0; i < text.size() && i < most; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7f) {
      out += static_cast<char>(byte);
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > most) out += "...";
  out += mark;
  return out;
}

}  // namespace diffattn::io
