// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "diffattn/io/file.h"

namespace diffattn::io {

/// Returns how many characters must be inserted, deleted, replaced or swapped with their neighbour
/// to turn one text into the other.
size_t edit_distance(std::string_view a, std::string_view b);

/// Reads a text file of any size in chunks of about chunk_bytes.
///
/// A chunk ends between an ASCII letter and a space. Every word pattern ends a word there, so the
/// chunks have the same words as the whole text. If 16 * chunk_bytes have no such position, the
/// chunk ends at the end of a line, else of a character, else anywhere.
class TextChunks {
 public:
  TextChunks(const std::string& path, size_t chunk_bytes);

  /// Reads the next chunk. At the end of the file, clears chunk and returns false.
  bool next(std::string& chunk);
  /// Total bytes of the chunks that next() has returned.
  uint64_t position() const noexcept { return position_; }
  uint64_t size() const noexcept { return file_.size(); }

 private:
  File file_;
  size_t chunk_bytes_;
  uint64_t position_ = 0;
  uint64_t read_to_ = 0;
  std::string held_;  // text that was read but not returned yet
};

}  // namespace diffattn::io
