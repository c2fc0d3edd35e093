// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "diffattn/io/jsonl.h"

namespace diffattn::app {

/// The bytes of a file, of a pipe or, for the path "-", of standard input.
class InputStream {
 public:
  /// Throws io::Error if the path cannot be opened or is a directory.
  explicit InputStream(const std::string& path);
  InputStream(const InputStream&) = delete;
  InputStream& operator=(const InputStream&) = delete;
  ~InputStream();

  /// Waits for the next bytes and returns their number; 0 at the end. Throws io::Error if the read
  /// fails.
  size_t read(std::span<char> out);
  /// Returns "standard input" or the path, for messages.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int fd_ = -1;
  bool owned_ = false;
};

/// Opens an input for reading line by line, see io::LineReader.
io::LineReader input_lines(const std::string& path);

/// Returns a whole input. Throws io::Error if it has more than max_bytes bytes.
std::string input_text(const std::string& path, uint64_t max_bytes);

}  // namespace diffattn::app
