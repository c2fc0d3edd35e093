// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "diffattn/io/file.h"

namespace diffattn::io {

/// A text file of any size in pieces of about chunk_bytes.
///
/// Pieces end between an ASCII letter and a space, where every word pattern ends a word, so that
/// words are the same as those of the whole text. Where a piece of 16 times the size has no such
/// place, it ends at a line's end, else at a character's, else anywhere.
class TextChunks {
 public:
  TextChunks(const std::string& path, std::size_t chunk_bytes);

  /// Replaces chunk by the next piece; false, and an empty chunk, at the end of the file.
  bool next(std::string& chunk);
  /// Bytes handed out so far, and in all.
  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t size() const noexcept { return file_.size(); }

 private:
  File file_;
  std::size_t chunk_bytes_;
  std::uint64_t position_ = 0;
  std::uint64_t read_to_ = 0;
  std::string held_;  // read, not handed out yet
};

}  // namespace diffattn::io
