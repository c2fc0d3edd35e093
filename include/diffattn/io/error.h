// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace diffattn::io {

/// The only exception the io layer throws for bad files and failed system calls.
///
/// what() reads `<file>: byte <offset>: expected <this>, got <that>`; the offset part is left out
/// where no single byte is to blame (a missing file, a full disk). Text taken from a file is
/// escaped and shortened before it enters a message, so that printing it is safe.
class Error : public std::runtime_error {
 public:
  Error(std::string file, std::string message);
  Error(std::string file, std::uint64_t offset, std::string message);

  /// The file as the caller named it.
  const std::string& file() const noexcept { return file_; }
  /// Byte offset in the file, where one is known.
  std::optional<std::uint64_t> offset() const noexcept { return offset_; }
  /// what() without file and offset.
  const std::string& message() const noexcept { return message_; }

 private:
  std::string file_;
  std::optional<std::uint64_t> offset_;
  std::string message_;
};

/// Untrusted text for a message: between quote marks, control and non-ASCII bytes as `\xNN`,
/// cut after 64 bytes.
std::string in_quotes(std::string_view text, char mark = '\'');

}  // namespace diffattn::io
