// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "diffattn/error.h"

namespace diffattn::io {

/// The only exception the io layer throws for bad files and failed system calls.
///
/// what() reads `<file>: byte <offset>: expected <this>, got <that>`. It has no offset if no single
/// byte is to blame (a missing file, a full disk). Messages escape and shorten text that comes from
/// a file, so it is safe to print them.
class Error : public diffattn::Error {
 public:
  Error(std::string file, std::string message);
  Error(std::string file, uint64_t offset, std::string message);

  /// The file as the caller named it.
  const std::string& file() const noexcept { return file_; }
  /// Byte offset in the file, if known.
  std::optional<uint64_t> offset() const noexcept { return offset_; }
  /// what() without file and offset.
  const std::string& message() const noexcept { return message_; }

 private:
  std::string file_;
  std::optional<uint64_t> offset_;
  std::string message_;
};

/// Quotes untrusted text for a message: writes control and non-ASCII bytes as `\xNN` and cuts the
/// text after `most` bytes.
std::string in_quotes(std::string_view text, char mark = '\'', size_t most = 64);

}  // namespace diffattn::io
